"""What a launch line needs to know of the script that it starts: options, variables, and how it joins the process group."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from ddpdoctor.facts.launch.record import StartedScript
from ddpdoctor.facts.script import SourceProblem
from ddpdoctor.scripts.syntax.index import Index, index
from ddpdoctor.scripts.syntax.parsing import parse
from ddpdoctor.scripts.syntax.vocabulary import words

__all__ = ["described"]

T = TypeVar("T")

STARTERS = frozenset(
    words("""
    accelerate colossalai composer deepspeed fire horovod hydra lightning megatron mpi4py nemo pytorch_lightning ray submitit
    torchtune transformers trl idr_torch
    """)
)
"""Packages that start ranks, parse options or join the process group for the script."""
RANK_OPTIONS = ("--local_rank", "--local-rank")
RANK_VARIABLES = (
    *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK", "MPI_LOCALRANKID"),
    *("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
)
RANK_NAMES = ("local_rank", "localrank", "slurm_localid", "local_id")
LONGEST = 40
"""Characters of a string that may be a backend or a device; longer ones are prose."""


def described(script: StartedScript, text: str) -> StartedScript:
    """The script with what its source shows; unchanged if the source is not Python."""
    tree = parse(text)
    if isinstance(tree, SourceProblem):
        return script
    tree_index = index(tree)
    calls = _Calls(tree_index)
    reads, sets = _reads(tree_index, calls), _sets(tree_index, calls)
    strings = {text.partition(":")[0] for text in _texts(_nodes(tree_index, ast.Constant)) if len(text) < LONGEST}
    options = [flag for call in calls.named("add_argument") for flag in _texts(call.args)]
    frameworks = {name.partition(".")[0] for name in _imports(tree_index)} & STARTERS
    trainer = {
        k.arg: n for call in calls.named("Trainer", "Fabric") for k in call.keywords if (n := _count(k.value, least=1))
    }
    starts = any(call.args for call in calls.named("spawn", "start_processes"))
    attributes = _nodes(tree_index, ast.Attribute)
    names = {node.attr for node in attributes}
    join = next(_joins(tree), None)
    locals_of = _local_rank_names(tree_index)
    loaders = [keyword for call in calls.named("DataLoader") for keyword in call.keywords]
    is_on_its_own = starts or frameworks or "RANK" in sets or "mpi" in strings
    return replace(
        script,
        is_python=True,
        local_rank=tuple(flag for flag in options if flag in RANK_OPTIONS),
        local_rank_required=any(_requires_rank(call) for call in calls.named("add_argument")),
        ignores_unknown=any(True for _ in calls.named("parse_known_args")),
        local_rank_used=any(n.attr == "local_rank" and isinstance(n.ctx, ast.Load) for n in attributes),
        spawns=starts and not {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} & reads,
        reads=tuple(sorted(reads)),
        sets=tuple(sorted(sets)),
        initialises=not is_on_its_own and not _asked(tree_index, calls) and any(map(_needs_rank, _joins(tree))),
        frameworks=tuple(sorted(frameworks)),
        declares=tuple(dict.fromkeys(options)),
        trainer_devices=trainer.get("devices", trainer.get("gpus")),
        trainer_nodes=trainer.get("num_nodes"),
        backend=None if join is None else _text(_argument(join, 0, "backend")),
        workers=max((_count(k.value) for k in loaders if k.arg == "num_workers"), default=0),
        takes_gpu_of_local_rank=any(
            _is_local_rank(a) or _last(a) in locals_of for c in calls.named("set_device", "device") for a in c.args[-1:]
        ),
        nccl=bool({"nccl", "cuda"} & strings) or "cuda" in names,
        takes_master=any(map(_needs_master, _joins(tree))),
        requires=tuple(sorted(set(_required(tree)) - sets)),
    )


class _Calls:
    """The calls of a file by the last part of the name: for a launch line the object does not matter."""

    def __init__(self, tree_index: Index) -> None:
        self._by_name: dict[str, list[ast.Call]] = {}
        for call in tree_index.calls:
            self._by_name.setdefault(_last(call.func), []).append(call)

    def named(self, *names: str) -> list[ast.Call]:
        return [call for name in names for call in self._by_name.get(name, ())]


def _nodes(tree_index: Index, kind: type[T]) -> list[T]:
    return [node for node in tree_index.scope_by_node if isinstance(node, kind)]


def _imports(tree_index: Index) -> Iterator[str]:
    for node in _nodes(tree_index, ast.Import):
        yield from (alias.name for alias in node.names)
    yield from (node.module or "" for node in _nodes(tree_index, ast.ImportFrom))


def _reads(tree_index: Index, calls: _Calls) -> set[str]:
    """The variables that the script reads or tests for."""
    given = {text for call in calls.named("get", "getenv", "pop") for text in _texts(call.args[:1]) if text.isupper()}
    indexed = {text for node, text in _of_environ(tree_index) if not isinstance(node.ctx, ast.Store)}
    elastic = {"TORCHELASTIC_RUN_ID"} if calls.named("is_torchelastic_launched") else set()
    return given | indexed | _tested(tree_index) | elastic


def _sets(tree_index: Index, calls: _Calls) -> set[str]:
    """The variables that the script assigns."""
    given = {text for call in calls.named("setdefault") for text in _texts(call.args[:1]) if text.isupper()}
    updates = [c for c in calls.named("update") if _last(getattr(c.func, "value", c.func)) == "environ"]
    listed = {t for c in updates for a in c.args if isinstance(a, ast.Dict) for t in _texts(k for k in a.keys if k)}
    named = {keyword.arg for call in updates for keyword in call.keywords if keyword.arg}
    return given | listed | named | {text for node, text in _of_environ(tree_index) if isinstance(node.ctx, ast.Store)}


def _of_environ(tree_index: Index) -> Iterator[tuple[ast.Subscript, str]]:
    """`environ["NAME"]`, with the name."""
    for node in tree_index.subscripts:
        name = _text(node.slice)
        if name is not None and _last(node.value) == "environ":
            yield node, name


def _tested(tree_index: Index) -> set[str]:
    """The names in `"NAME" in environ`."""
    tests = (n for n in _nodes(tree_index, ast.Compare) if any(_last(c) == "environ" for c in n.comparators))
    return set(_texts(node.left for node in tests))


def _asked(tree_index: Index, calls: _Calls) -> bool:
    """Whether the script tests for the variables of a rank or reads them with a default: it can run without them."""
    given = {text for call in calls.named("get", "getenv") for text in _texts(call.args[:1])}
    return bool({"RANK", "WORLD_SIZE", "LOCAL_RANK"} & (given | _tested(tree_index)))


def _requires_rank(call: ast.Call) -> bool:
    required = next((k.value for k in call.keywords if k.arg == "required"), None)
    is_rank = any(flag in RANK_OPTIONS for flag in _texts(call.args))
    return is_rank and isinstance(required, ast.Constant) and required.value is True


def _count(node: ast.expr, least: int = 0) -> int:
    """A literal number; 0 for anything else."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) is int and value >= least else 0


def _is_local_rank(node: ast.expr) -> bool:
    """Whether it is the local rank itself, by its name or from the environment; not a value computed from it."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(v, ast.FormattedValue) and _is_local_rank(v.value) for v in node.values)
    if isinstance(node, ast.Call):
        return _last(node.func) in ("int", "get", "getenv") and any(_is_local_rank(a) for a in node.args[:1])
    if isinstance(node, ast.Subscript):
        return _is_local_rank(node.slice)
    if isinstance(node, ast.Constant):
        return node.value in RANK_VARIABLES
    return _last(node).lower() in RANK_NAMES


def _local_rank_names(tree_index: Index) -> frozenset[str]:
    """The names to which nothing but a local rank is assigned."""
    names: dict[str, bool] = {}
    for node in _nodes(tree_index, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                names[target.id] = names.get(target.id, True) and _is_local_rank(node.value)
    return frozenset(name for name, is_local in names.items() if is_local)


def _required(tree: ast.Module) -> Iterator[str]:
    """The variables without which every start of the script fails: `os.environ["NAME"]` in what always runs."""
    for node in _certain_nodes(tree):
        name = _text(node.slice) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) else None
        if name is not None and isinstance(node, ast.Subscript) and _last(node.value) == "environ":
            yield name


def _joins(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls of init_process_group that are reached in every start of the script."""
    calls = (node for node in _certain_nodes(tree) if isinstance(node, ast.Call))
    return (call for call in calls if _last(call.func) == "init_process_group")


def _needs_master(call: ast.Call) -> bool:
    """Whether the call takes the address of the store from the environment."""
    if {keyword.arg for keyword in call.keywords} & {None, "store"}:
        return False
    method = _argument(call, 1, "init_method")
    return method is None or (_text(method) or "").startswith("env:")


def _needs_rank(call: ast.Call) -> bool:
    """Whether the call takes RANK from the environment."""
    given = {keyword.arg for keyword in call.keywords}
    if given & {None, "store", "rank"}:
        return False
    method = _argument(call, 1, "init_method")
    return method is None or (_text(method) or "").startswith("env:")


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    given = next((k.value for k in call.keywords if k.arg == name), None)
    return given or (call.args[position] if len(call.args) > position else None)


def _certain_nodes(tree: ast.Module) -> Iterator[ast.Call | ast.Subscript]:
    """The calls and subscripts that are always executed: those of top-level statements, of the main guard, and of the
    functions called from there.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return _unconditional(tree.body, functions, frozenset())


def _unconditional(
    body: list[ast.stmt], functions: dict[str, ast.FunctionDef], visited: frozenset[str]
) -> Iterator[ast.Call | ast.Subscript]:
    for statement in body:
        if (isinstance(statement, ast.If) and _is_main_guard(statement.test)) or isinstance(statement, ast.With):
            yield from _unconditional(statement.body, functions, visited)
        elif isinstance(statement, ast.Try):
            if not statement.handlers:
                yield from _unconditional(statement.body, functions, visited)
        elif isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Subscript):
                    yield node
                elif isinstance(node, ast.Call):
                    yield node
                    name = node.func.id if isinstance(node.func, ast.Name) else ""
                    if name in functions and name not in visited:
                        yield from _unconditional(functions[name].body, functions, visited | {name})


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _texts(nodes: Iterable[ast.expr]) -> list[str]:
    return [text for node in nodes if (text := _text(node)) is not None]


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
