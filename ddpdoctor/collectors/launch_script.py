"""Looks at the training script of a launch line for what concerns the line; the script's own faults are other rules."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Script

__all__ = ["look"]

MAX_BYTES = 1 << 20
FRAMEWORKS = (
    "accelerate",
    "colossalai",
    "composer",
    "deepspeed",
    "fire",
    "horovod",
    "hydra",
    "lightning",
    "megatron",
    "mpi4py",
    "nemo",
    "pytorch_lightning",
    "ray",
    "submitit",
    "torchtune",
    "transformers",
    "trl",
    "idr_torch",
)


def look(path: str) -> Script:
    """What is known of the script at `path`. Nothing is run."""
    path = os.path.normpath(path)
    if not os.path.isfile(path):
        return Script(path, exists=os.path.isdir(path) and _has_main(path), similar=_similar(path))
    executable = os.access(path, os.X_OK)
    try:
        with open(path, "rb") as file:
            head = file.read(MAX_BYTES)
    except OSError:
        return Script(path, exists=True, is_executable=executable)
    shebang = head.startswith(b"#!")
    if not path.endswith(".py") and not (shebang and b"python" in head.split(b"\n", 1)[0]):
        return Script(path, True, executable, shebang, is_python=False if shebang or b"\0" in head[:4096] else None)
    try:
        tree = ast.parse(head.decode("utf-8", "replace"))
    except (SyntaxError, ValueError, RecursionError):
        return Script(path, True, executable, shebang)
    return _described(path, executable, shebang, tree)


def _has_main(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__main__.py"))


def _similar(path: str) -> str | None:
    try:
        names = {n[:-3]: n for n in os.listdir(os.path.dirname(path) or ".") if n.endswith(".py")}
    except OSError:
        return None
    close = difflib.get_close_matches(os.path.splitext(os.path.basename(path))[0], names, n=1, cutoff=0.75)
    return names[close[0]] if close else None


def _described(path: str, executable: bool, shebang: bool, tree: ast.Module) -> Script:
    seen = _Seen()
    seen.visit(tree)
    spawns = seen.spawns and not {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} & seen.reads
    return Script(
        path,
        exists=True,
        is_executable=executable,
        has_shebang=shebang,
        is_python=True,
        local_rank=tuple(f for f in seen.options if f in ("--local_rank", "--local-rank")),
        local_rank_required=seen.local_rank_required,
        local_rank_used=seen.local_rank_used,
        spawns=spawns,
        reads=tuple(sorted(seen.reads)),
        sets=tuple(sorted(seen.sets)),
        initialises=_initialises(tree, seen),
        frameworks=tuple(sorted(seen.frameworks)),
        declares=tuple(dict.fromkeys(seen.options)),
        trainer_devices=seen.trainer.get("devices", seen.trainer.get("gpus")),
        trainer_nodes=seen.trainer.get("num_nodes"),
        backend=_backend(tree),
        workers=seen.workers,
        takes_gpu_of_local_rank=seen.takes_gpu_of_local_rank,
        nccl="nccl" in seen.words or "cuda" in seen.words or "cuda" in seen.names,
    )


class _Seen(ast.NodeVisitor):
    """One walk over a script."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self.local_rank_required = False
        self.local_rank_used = False
        self.spawns = False
        self.reads: set[str] = set()
        self.sets: set[str] = set()
        self.frameworks: set[str] = set()
        self.trainer: dict[str, int] = {}
        self.words: set[str] = set()
        self.names: set[str] = set()
        self.workers = 0
        self.takes_gpu_of_local_rank = False

    def visit_Import(self, node: ast.Import) -> None:
        self.frameworks |= {a.name.split(".")[0] for a in node.names} & set(FRAMEWORKS)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.frameworks |= {(node.module or "").split(".")[0]} & set(FRAMEWORKS)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 40:
            self.words.add(node.value.partition(":")[0])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        if node.attr == "local_rank" and isinstance(node.ctx, ast.Load):
            self.local_rank_used = True
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        name = _text(node.slice)
        if name is not None and _last(node.value) == "environ":
            (self.sets if isinstance(node.ctx, ast.Store) else self.reads).add(name)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        name = _text(node.left)
        if name is not None and any(_last(c) == "environ" for c in node.comparators):
            self.reads.add(name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _last(node.func)
        first = _text(node.args[0]) if node.args else None
        if name in ("get", "getenv", "pop") and first is not None and first.isupper():
            self.reads.add(first)
        elif name == "setdefault" and first is not None and first.isupper():
            self.sets.add(first)
        elif name == "update" and _last(getattr(node.func, "value", node.func)) == "environ":
            self._update(node)
        elif name == "add_argument":
            self._argument(node)
        elif name in ("spawn", "start_processes") and node.args:
            self.spawns = True
        elif name == "is_torchelastic_launched":
            self.reads.add("TORCHELASTIC_RUN_ID")
        elif name == "Trainer":
            self._trainer(node)
        elif name == "DataLoader":
            self._loader(node)
        elif name in ("set_device", "device") and any(_is_local_rank(a) for a in node.args[-1:]):
            self.takes_gpu_of_local_rank = True
        self.generic_visit(node)

    def _loader(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg == "num_workers" and isinstance(value, ast.Constant) and type(value.value) is int:
                self.workers = max(self.workers, value.value)

    def _update(self, node: ast.Call) -> None:
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                self.sets |= {text for key in argument.keys if key is not None and (text := _text(key))}
        self.sets |= {k.arg for k in node.keywords if k.arg}

    def _argument(self, node: ast.Call) -> None:
        flags = [text for argument in node.args if (text := _text(argument)) is not None]
        self.options += flags
        if any(f in ("--local_rank", "--local-rank") for f in flags):
            required = next((k.value for k in node.keywords if k.arg == "required"), None)
            self.local_rank_required |= isinstance(required, ast.Constant) and required.value is True

    def _trainer(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            value = keyword.value
            is_count = isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0
            if keyword.arg in ("devices", "gpus", "num_nodes") and is_count:
                self.trainer[keyword.arg] = ast.literal_eval(value)


def _is_local_rank(node: ast.expr) -> bool:
    """The number of the local rank as it is, by its name or read from the environment; not one that is reckoned from it."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(v, ast.FormattedValue) and _is_local_rank(v.value) for v in node.values)
    if isinstance(node, ast.Call):
        return _last(node.func) in ("int", "get", "getenv") and any(_is_local_rank(a) for a in node.args[:1])
    if isinstance(node, ast.Subscript):
        return _is_local_rank(node.slice)
    if isinstance(node, ast.Constant):
        return node.value in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    return _last(node).lower() in ("local_rank", "localrank", "slurm_localid", "local_id")


def _backend(tree: ast.Module) -> str | None:
    """The backend that the script names in an init_process_group which is always reached."""
    for call in _unconditional(tree.body, _functions(tree), set()):
        if _last(call.func) == "init_process_group":
            given = next((k.value for k in call.keywords if k.arg == "backend"), call.args[0] if call.args else None)
            return None if given is None else _text(given)
    return None


def _initialises(tree: ast.Module, seen: _Seen) -> bool:
    """An init_process_group that needs RANK from outside and is reached however the script is started."""
    if seen.spawns or seen.frameworks or "RANK" in seen.sets or "mpi" in seen.words:
        return False
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & _asked(tree):
        return False
    calls = [
        call for call in _unconditional(tree.body, _functions(tree), set()) if _last(call.func) == "init_process_group"
    ]
    return any(_needs_rank(call) for call in calls)


def _needs_rank(call: ast.Call) -> bool:
    given = {k.arg: k.value for k in call.keywords}
    if None in given or "store" in given or "rank" in given:
        return False
    method = given.get("init_method") or (call.args[1] if len(call.args) > 1 else None)
    text = None if method is None else _text(method)
    return method is None or (text is not None and text.startswith("env:"))


def _asked(tree: ast.Module) -> set[str]:
    """Variables that the script tests for or reads with a default: it is prepared to run without them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in ("get", "getenv") and node.args:
            text = _text(node.args[0])
            if text:
                found.add(text)
        elif isinstance(node, ast.Compare) and any(_last(c) == "environ" for c in node.comparators):
            text = _text(node.left)
            if text:
                found.add(text)
    return found


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _unconditional(body: list[ast.stmt], functions: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[ast.Call]:
    """The calls that always happen: straight statements, the main guard, and the functions called from there."""
    for statement in body:
        if (isinstance(statement, ast.If) and _is_main_guard(statement.test)) or isinstance(statement, ast.With):
            yield from _unconditional(statement.body, functions, seen)
        elif isinstance(statement, ast.Try):
            if not statement.handlers:
                yield from _unconditional(statement.body, functions, seen)
        elif isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    yield node
                    name = node.func.id if isinstance(node.func, ast.Name) else ""
                    if name in functions and name not in seen:
                        yield from _unconditional(functions[name].body, functions, {*seen, name})


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
