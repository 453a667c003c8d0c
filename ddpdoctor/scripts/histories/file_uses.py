"""What a program does with files, between barriers.

| file or folder | used by all before a barrier | used by all after one |
|---|---|---|
| created by one rank | missing: FOLDER_MISSING | used |
| read by all, removed by one rank | missing: REMOVED_WHILE_READ | removed |
| written by the first rank of the job, path of the node | missing: NOT_ON_EVERY_NODE | missing: NOT_ON_EVERY_NODE |
| written by the first rank of each node, common path | missing: WRITTEN_PER_NODE | |
"""

from __future__ import annotations

import ast

from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.process_state import file_exists, loaded, saved
from ddpdoctor.scripts.histories.record import FileUse, MistakeKind, Use
from ddpdoctor.scripts.histories.values import NOTHING, OWN, UNKNOWN, DiffersBy, Traced, TracedKind, derived

__all__ = ["file_function", "path_method", "use_of"]

_CREATE = ("os.makedirs", "os.mkdir")
_REMOVE = ("os.remove", "os.unlink", "shutil.rmtree", "os.rmdir")
_RANKS = frozenset((DiffersBy.RANK, DiffersBy.LOCAL_RANK))


def file_function(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    """A function that uses a file or computes a path; None for anything else."""
    if name in ("os.path.join", "pathlib.Path", "os.path.expanduser", "os.path.abspath"):
        symbols = tuple(a.symbol for a in args)
        return derived(
            TracedKind.TEXT, *args, symbol=("path", *symbols) if all(s is not None for s in symbols) else None
        )
    if name in ("tempfile.gettempdir", "os.getcwd"):
        return Traced(TracedKind.TEXT, certain=True, symbol=("call", name))
    if name in ("tempfile.mkdtemp", "tempfile.mkstemp"):
        return Traced(TracedKind.TEXT, frozenset((DiffersBy.RANDOM,)), True)
    if name in ("os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.getsize", "os.listdir") and args:
        return file_exists(args[0])
    if name.startswith("os.path."):
        return UNKNOWN
    if name == "torch.save":
        path = kw.get("f") or (args[1] if len(args) > 1 else UNKNOWN)
        use_of(ex, Use.WRITE, path, node)
        saved(ex, path, args[0] if args else UNKNOWN, node)
        return NOTHING
    if name == "torch.load":
        path = kw.get("f") or (args[0] if args else UNKNOWN)
        use_of(ex, Use.READ, path, node)
        return loaded(ex, path)
    if name == "open" and args:
        mode = args[1].constant if len(args) > 1 else kw["mode"].constant if "mode" in kw else "r"
        if isinstance(mode, str):
            use_of(ex, Use.READ if mode.startswith("r") else Use.WRITE, args[0], node)
        return UNKNOWN
    if name in _CREATE and args:
        use_of(ex, Use.CREATE, args[0], node)
        return NOTHING
    if name in _REMOVE and args:
        use_of(ex, Use.REMOVE, args[0], node)
        return NOTHING
    return None


def path_method(ex: Executor, node: ast.Call, owner: Traced, name: str) -> Traced | None:
    """A method of pathlib.Path."""
    if name == "mkdir":
        use_of(ex, Use.CREATE, owner, node)
    elif name == "unlink":
        use_of(ex, Use.REMOVE, owner, node)
    elif name in ("write_text", "write_bytes"):
        use_of(ex, Use.WRITE, owner, node)
    elif name in ("read_text", "read_bytes"):
        use_of(ex, Use.READ, owner, node)
    else:
        return None
    return NOTHING


def use_of(ex: Executor, use: Use, path: Traced, node: ast.Call) -> None:
    """Record one use of a path, and compare it with the earlier ones."""
    rank = ex.only_rank()
    if (
        use is Use.CREATE
        and path.certain
        and not ex.differs_here()
        and not path.origins & _RANKS
        and path.origins & {DiffersBy.CLOCK, DiffersBy.RANDOM}
        and path.made is not None
    ):
        ex.mistake(MistakeKind.FOLDER_DIFFERS, ex.own_node(path.made, node), node)
    if use is Use.WRITE and path.symbol is not None and not path.origins & OWN:
        _folder(ex, path, node, rank)
    if path.symbol is None or path.origins & (_RANKS | OWN):
        return
    if use is Use.WRITE and ex.knows_rank and rank == (DiffersBy.LOCAL_RANK, 0) and not path.origins and path.certain:
        ex.mistake(MistakeKind.WRITTEN_PER_NODE, node)
    earlier = ex.state.files.get(path.symbol, ())
    if use is Use.READ and rank is None and DiffersBy.NODE in path.origins and not ex.differs_here():
        written = next((u for u in earlier if u.use is Use.WRITE), None)
        if written is not None and all(u.rank == (DiffersBy.RANK, 0) for u in earlier if u.use is Use.WRITE):
            ex.mistake(MistakeKind.NOT_ON_EVERY_NODE, node, written.node)
    if use is Use.READ and rank is None and not ex.differs_here() and not path.origins and path.certain:
        own = [u for u in earlier if u.use is Use.WRITE]
        if own and all(u.rank == (DiffersBy.RANK, 0) and not u.before_barrier for u in own):
            ex.mistake(MistakeKind.READ_BEFORE_WRITTEN, node, own[0].node)
    if use is Use.REMOVE and rank is not None:
        read = next((u for u in earlier if u.use is Use.READ and u.rank is None and not u.before_barrier), None)
        if read is not None:
            ex.mistake(MistakeKind.REMOVED_WHILE_READ, node, read.node)
    ex.state.files[path.symbol] = (*earlier, FileUse(use, node, rank))


def _folder(ex: Executor, path: Traced, node: ast.Call, rank: tuple[DiffersBy, object] | None) -> None:
    folder = (
        path.symbol[1]
        if isinstance(path.symbol, tuple) and path.symbol[:1] == ("path",) and len(path.symbol) > 2
        else None
    )
    uses = ex.state.files.get(folder, ()) if folder is not None else ()
    made = next((u for u in uses if u.use is Use.CREATE), None)
    by_one = [u for u in uses if u.use is Use.CREATE]
    if made is None or rank is not None or any(u.rank is None or u.before_barrier for u in by_one):
        return
    if not ex.differs_here():
        ex.mistake(MistakeKind.FOLDER_MISSING, node, made.node)
