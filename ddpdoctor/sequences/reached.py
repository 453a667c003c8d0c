"""The parts of the user's code that a rehearsal did not reach: calls that concern other ranks, and branches on the rank."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import field

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RehearsalObservation, UnreachedCode
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.sequences.branches import Sources
from ddpdoctor.sequences.tracks import Track

__all__ = ["ExecutedCode", "call_name", "executed_files", "rank_branches", "unreached"]

OWN_NAMES = frozenset(
    (
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
        *("reduce_scatter", "reduce_scatter_tensor", "broadcast_object_list", "gather_object", "scatter_object_list"),
        *("monitored_barrier", "batch_isend_irecv", "isend", "irecv", "wait_for_everyone", "gather_for_metrics"),
        *("full_tensor", "get_model_state_dict", "get_state_dict", "set_state_dict", "new_group", "sync_gradients"),
        *(
            "clip_grad_norm_",
            "no_sync",
            "main_process_first",
            "backward",
            "save_checkpoint",
            "save_state",
            "load_state",
        ),
    )
)
"""Calls that concern other ranks whatever they are called on."""
SHARED_NAMES = frozenset(("barrier", "broadcast", "reduce", "gather", "scatter", "send", "recv", "save", "load"))
"""Names that other things have as well: they count only on one of HOLDERS."""
COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
        *("reduce_scatter", "reduce_scatter_tensor", "broadcast_object_list", "broadcast", "barrier", "reduce"),
        *("wait_for_everyone", "gather_for_metrics", "full_tensor"),
    )
)
"""Those of them that all ranks must call."""
HOLDERS = ("dist", "distributed", "c10d", "accelerator", "fabric", "strategy", "comm", "trainer", "torch", "dcp")
RANK_TEST = re.compile(
    r"\b(global_|local_)?rank (==|!=|>|<|>=|<=) \d|get_rank\(\)|\bis_(main|master|chief|local_main|zero|rank_zero)"
)
"""A condition that is true on some ranks only."""
MOST_SHOWN = 40


@dataclass
class ExecutedCode:
    """The lines of each file that some rank ran, and the line ranges of which it is not known."""

    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    unknown: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, tracks: Sequence[Track]) -> ExecutedCode:
        """From the records of all processes."""
        found = cls()
        for track in tracks:
            for record in track.of_kind("lines"):
                lines = record.get("lines")
                if isinstance(record.get("file"), str) and isinstance(lines, list):
                    found.lines[record["file"]] |= {line for line in lines if type(line) is int}
            for record in track.of_kind("unfollowed"):
                first, last = record.get("first"), record.get("last")
                if isinstance(record.get("file"), str) and isinstance(first, int) and isinstance(last, int):
                    found.unknown[record["file"]].append((first, last))
        return found

    def has_run(self, file: str, node: ast.expr | ast.stmt) -> bool:
        """Whether a statement or call ran, or may have."""
        first, last = node.lineno, node.end_lineno or node.lineno
        if any(first <= end and begin <= last for begin, end in self.unknown.get(file, ())):
            return True
        return any(first <= line <= last for line in self.lines.get(file, ()))


def unreached(sources: Sources, executed: ExecutedCode) -> tuple[UnreachedCode, ...]:
    """Calls that concern other ranks, and branches on the rank, that no rank reached, in the order of the files."""
    found: dict[tuple[str, int], UnreachedCode] = {}
    for file in sorted(executed.lines):
        tree = sources.tree(file)
        if tree is None:
            continue
        for each in (*_branches(tree, file, sources, executed), *_calls(tree, file, executed)):
            found.setdefault((each.place.file, each.place.line), each)
    return tuple(found[key] for key in sorted(found))[:MOST_SHOWN]


def _calls(tree: ast.Module, file: str, executed: ExecutedCode) -> Iterator[UnreachedCode]:
    for node, function in _within(tree.body, ""):
        name = call_name(node) if isinstance(node, ast.Call) else None
        if name is not None and isinstance(node, ast.Call) and not executed.has_run(file, node):
            yield UnreachedCode(CodePlace(file, node.lineno, function), name)


def _branches(tree: ast.Module, file: str, sources: Sources, executed: ExecutedCode) -> Iterator[UnreachedCode]:
    """Branches that depend on the rank and whose condition was evaluated, but that no rank entered."""
    for node, function in _within(tree.body, ""):
        if not isinstance(node, ast.If) or not executed.has_run(file, node.test):
            continue
        if not sources.is_about_ranks(file, node) or _is_main_guard(node):
            continue
        for body in (node.body, node.orelse):
            if body and not any(executed.has_run(file, each) for each in body):
                at = body[0].lineno
                yield UnreachedCode(CodePlace(file, at, function), f"a branch on `{ast.unparse(node.test)[:60]}`", True)


def rank_branches(sources: Sources, executed: ExecutedCode, ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Branches on the rank that did not run, and that call a function of the script in which there is a collective."""
    functions = _functions_with_collectives(sources, executed)
    for file in sorted(executed.lines):
        tree = sources.tree(file)
        for node, function in _within(tree.body, "") if tree is not None else ():
            if not isinstance(node, ast.If) or not RANK_TEST.search(ast.unparse(node.test)) or node.orelse:
                continue
            if not executed.has_run(file, node.test) or any(executed.has_run(file, each) for each in node.body):
                continue
            calls: list[ast.Call] = [n for each in node.body for n in ast.walk(each) if isinstance(n, ast.Call)]
            for call in calls:
                inner = functions.get(ast.unparse(call.func).rpartition(".")[2])
                if inner is not None:
                    places = (CodePlace(file, call.lineno, function), CodePlace(file, node.lineno, function))
                    numbers = tuple(t.rank for t in ranks if t.rank is not None)
                    yield RehearsalObservation(
                        ObservationKind.RANK_BRANCH, numbers, places, inner[0], {"what": inner[1]}
                    )
                    return


def _functions_with_collectives(sources: Sources, executed: ExecutedCode) -> dict[str, tuple[CodePlace, str]]:
    """The functions of the script that call a collective unconditionally, by name; a name that is used twice is left out."""
    found: dict[str, list[tuple[CodePlace, str] | None]] = defaultdict(list)
    for file in sorted(executed.lines):
        tree = sources.tree(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name].append(_first_collective(node, file))
    return {name: each[0] for name, each in found.items() if len(each) == 1 and each[0] is not None}


def _first_collective(function: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> tuple[CodePlace, str] | None:
    for statement in function.body:
        if isinstance(statement, (ast.If, ast.Try, ast.While)):
            if any(isinstance(n, ast.Return) for n in ast.walk(statement)):
                return None
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (name := call_name(node)) in COLLECTIVES and name is not None:
                return CodePlace(file, node.lineno, function.name), name
    return None


def _within(body: Sequence[ast.AST], function: str) -> Iterator[tuple[ast.AST, str]]:
    """All nodes with the name of the function that they are in."""
    for node in body:
        yield node, function
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        yield from _within(list(ast.iter_child_nodes(node)), inner)


def call_name(call: ast.Call) -> str | None:
    """The name of a call that concerns other ranks."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id in OWN_NAMES - {"backward"} else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr in OWN_NAMES:
        return function.attr
    holder = ast.unparse(function.value).rpartition(".")[2].lower()
    is_shared = function.attr in SHARED_NAMES and any(word in holder for word in HOLDERS)
    return function.attr if is_shared else None


def _is_main_guard(node: ast.If) -> bool:
    return "__name__" in ast.unparse(node.test)


def executed_files(tracks: Sequence[Track]) -> Set[str]:
    """The user's files of which lines ran."""
    return ExecutedCode.of(tracks).lines.keys()
