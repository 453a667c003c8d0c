"""Conditions that decide about collectives and depend on values that differ between ranks, which diverge in a longer run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RehearsalObservation
from ddpdoctor.sequences.branches import RANK_WORDS, Sources
from ddpdoctor.sequences.reached import call_name
from ddpdoctor.sequences.tracks import WORLD, Track

__all__ = ["decisions"]

Function = tuple[str, str, int]
"""File, name and first line of a function; a module is named `<module>`."""
Values = dict[str, dict[int, str]]
"""The values of a variable by rank."""
MOST_VALUES = 3
IN_PLACE = ("all_reduce", "broadcast")
PURE = frozenset(
    (
        "abs",
        "bool",
        "float",
        "int",
        "len",
        "max",
        "min",
        "range",
        "round",
        "sum",
        "math",
        "np",
        "numpy",
        "torch",
        "time",
    )
)
"""What a call without collectives begins with."""
PURE_METHODS = frozenset(
    ("item", "any", "all", "isnan", "isinf", "isfinite", "mean", "sum", "max", "min", "numel", "size", "detach")
)


def decisions(ranks: Sequence[Track], sources: Sources) -> tuple[RehearsalObservation, ...]:
    """The first condition of each function on a value that was seen to differ, if it ends or skips collectives."""
    members = [t for t in ranks if t.has_joined and t.rank is not None]
    if len(members) < 2 or any(t.of_kind("join") for t in members):
        return ()
    lines = _lines_of_collectives(members)
    found = []
    for function, values in _differing(members).items():
        first = next(_decisive(function, values, sources, lines), None)
        if first is not None:
            found.append(_observed(members, function, values, *first))
    return tuple(found)


def _observed(
    ranks: Sequence[Track], function: Function, values: Values, node: ast.stmt, name: str, line: int
) -> RehearsalObservation:
    by_rank = sorted(values[name].items())
    shown = ", ".join(f"{value} on rank {rank}" for rank, value in by_rank[:MOST_VALUES])
    at = CodePlace(function[0], node.lineno, function[1])
    return RehearsalObservation(
        ObservationKind.LOCAL_DECISION,
        tuple(sorted(t.rank for t in ranks if t.rank is not None)),
        (at,),
        CodePlace(function[0], line, function[1]),
        {"name": name, "values": shown},
    )


def _lines_of_collectives(ranks: Sequence[Track]) -> set[tuple[str, int]]:
    """The lines at which all ranks call collectives of the whole world, or synchronize gradients."""
    by_rank = [{(p.file, p.line) for call in t.sequences.get(WORLD, ()) for p in call.places} for t in ranks]
    return set.intersection(*by_rank)


def _differing(ranks: Sequence[Track]) -> dict[Function, Values]:
    """The variables that differ between ranks at the same call, by function. The last seen difference of each is kept."""
    by_moment: dict[object, dict[int, list[object]]] = defaultdict(dict)
    for track in ranks:
        for record in track.of_kind("locals"):
            frames = record.get("frames")
            if track.rank is not None and isinstance(frames, list):
                by_moment[str(record.get("place")), record.get("count")][track.rank] = frames
    found: dict[Function, Values] = defaultdict(dict)
    for frames_of in by_moment.values():
        if len(frames_of) == len(ranks):
            for function, values in _differing_now(frames_of):
                found[function] |= values
    return found


def _differing_now(frames_of: Mapping[int, list[object]]) -> Iterator[tuple[Function, Values]]:
    by_function: dict[Function, dict[int, dict[str, str]]] = defaultdict(dict)
    for rank, frames in frames_of.items():
        for frame in frames:
            if isinstance(frame, list) and len(frame) == 4 and isinstance(frame[3], dict):
                by_function[str(frame[0]), str(frame[1]), int(frame[2])][rank] = frame[3]
    for function, variables in by_function.items():
        if len(variables) < len(frames_of):
            continue
        names = set.intersection(*(set(each) for each in variables.values()))
        values = {name: {rank: each[name] for rank, each in variables.items()} for name in sorted(names)}
        yield function, {name: each for name, each in values.items() if len(set(each.values())) > 1}


def _decisive(
    function: Function, values: Values, sources: Sources, lines: set[tuple[str, int]]
) -> Iterator[tuple[ast.stmt, str, int]]:
    """Conditions of a function that decide about collectives: the statement, its variable, and a line it decides about."""
    tree = sources.tree(function[0])
    body = _body(tree, function) if tree is not None else None
    own = sorted(line for file, line in lines if file == function[0])
    if tree is None or body is None:
        return
    conditions = list(_conditions(body, None))
    calls = _CallsInConditions(tree, own)
    agreed = set(_given_to_collectives(body))
    values = {n: each for n, each in values.items() if n not in agreed and not _is_of_rank(n, body, calls)}
    implied = {name: name for name in values} | _assigned_under(values, conditions, calls)
    for loop, node in conditions:
        tested = _tested(node)
        name = _name_in(tested, implied, calls) if tested is not None else None
        if name is None or tested is None or RANK_WORDS.search(ast.unparse(tested)):
            continue
        decided = _decided(node, loop, own)
        if decided is not None:
            yield node, implied[name], decided


def _given_to_collectives(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The variables that a collective changes in place: what was seen at its call is not what follows."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and call_name(node) in IN_PLACE:
                values = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "tensor")]
                yield from (ast.unparse(each) for each in values if isinstance(each, (ast.Name, ast.Attribute)))


def _decided(node: ast.stmt, loop: ast.stmt | None, lines: Sequence[int]) -> int | None:
    """A line with a collective that this statement repeats, ends or skips."""
    if isinstance(node, (ast.For, ast.While)):
        return next((line for line in lines if node.body[0].lineno <= line <= (node.end_lineno or 0)), None)
    if not isinstance(node, ast.If) or loop is None:
        return None
    leaves = [s for part in (node.body, node.orelse) for s in _leaving(part)]
    if not leaves:
        return None
    inside = [line for line in lines if loop.lineno <= line <= (loop.end_lineno or 0)]
    if all(isinstance(each, ast.Continue) for each in leaves):
        inside = [line for line in inside if line > node.lineno]
    return next(iter(inside), None)


def _leaving(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that leave or continue the loop around, not those of loops and functions inside."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Continue, ast.Return)):
            yield statement
        elif isinstance(statement, (ast.If, ast.With, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from _leaving(getattr(statement, part, []))


def _conditions(body: Sequence[ast.stmt], loop: ast.stmt | None) -> Iterator[tuple[ast.stmt | None, ast.stmt]]:
    """All conditions and loops of a function, with the innermost loop around each."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(statement, (ast.If, ast.While, ast.For)):
            yield loop, statement
        inner = statement if isinstance(statement, (ast.For, ast.While)) else loop
        for part in ("body", "orelse", "finalbody"):
            yield from _conditions(getattr(statement, part, None) or [], inner)


def _tested(node: ast.stmt) -> ast.expr | None:
    """The condition of a statement; of a `for` over a range, the range."""
    if isinstance(node, (ast.If, ast.While)):
        return node.test
    is_range = isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range"
    return node.iter if is_range and isinstance(node, ast.For) else None


def _assigned_under(
    values: Values, conditions: Sequence[tuple[ast.stmt | None, ast.stmt]], calls: _CallsInConditions
) -> dict[str, str]:
    """Variables that are assigned under a condition on a value that differs, with that value: a patience that counts."""
    found: dict[str, str] = {}
    for _, node in conditions:
        name = _name_in(node.test, values, calls) if isinstance(node, ast.If) else None
        if name is None or not isinstance(node, ast.If) or RANK_WORDS.search(ast.unparse(node.test)):
            continue
        for inner in ast.walk(node):
            targets = inner.targets if isinstance(inner, ast.Assign) else ()
            targets = [inner.target] if isinstance(inner, ast.AugAssign) else targets
            found |= {ast.unparse(each): name for target in targets for each in _plain(target)}
    return {assigned: name for assigned, name in found.items() if assigned not in values}


def _is_of_rank(name: str, body: Sequence[ast.stmt], calls: _CallsInConditions) -> bool:
    """Whether a variable is the rank or made from it: a condition on it is compared where it is evaluated."""
    if RANK_WORDS.search(name):
        return True
    made = [n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Assign)]
    return any(
        _names_rank(each.value, calls)
        for each in made
        if name in {ast.unparse(target) for targets in each.targets for target in _plain(targets)}
    )


def _names_rank(value: ast.expr, calls: _CallsInConditions) -> bool:
    """Whether an expression computes with the rank; what a function of the script makes of it is not known."""
    if isinstance(value, ast.Call) and calls.is_own(value):
        return False
    if isinstance(value, (ast.Name, ast.Attribute, ast.Constant)):
        return bool(RANK_WORDS.search(ast.unparse(value)))
    return any(_names_rank(each, calls) for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr))


def _plain(target: ast.expr) -> Iterator[ast.expr]:
    for each in target.elts if isinstance(target, ast.Tuple) else (target,):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield each


def _name_in(test: ast.expr, values: Container[str], calls: _CallsInConditions) -> str | None:
    """A variable in an expression that differs; what a call makes of its arguments may be the same on all ranks."""
    if isinstance(test, ast.Call) and not calls.keep_differences(test):
        return None
    if isinstance(test, (ast.Name, ast.Attribute)) and ast.unparse(test) in values:
        return ast.unparse(test)
    inner = (each for each in ast.iter_child_nodes(test) if isinstance(each, ast.expr))
    return next((name for each in inner if (name := _name_in(each, values, calls)) is not None), None)


class _CallsInConditions:
    """Which calls keep a difference between ranks: those of functions without collectives."""

    def __init__(self, tree: ast.Module, lines: Sequence[int]) -> None:
        self._synchronizes = {
            node.name: any(node.lineno <= line <= (node.end_lineno or 0) for line in lines) or _calls_others(node)
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }

    def is_own(self, call: ast.Call) -> bool:
        """Whether a function of the script is called."""
        return ast.unparse(call.func).rpartition(".")[2] in self._synchronizes

    def keep_differences(self, call: ast.Call) -> bool:
        function = ast.unparse(call.func)
        last = function.rpartition(".")[2]
        if last in self._synchronizes:
            return not self._synchronizes[last]
        return function.partition(".")[0] in PURE or last in PURE_METHODS


def _calls_others(function: ast.AST) -> bool:
    """Whether a function names a collective, or a function of the project whose body is not seen here."""
    return any(call_name(node) is not None for node in ast.walk(function) if isinstance(node, ast.Call))


def _body(tree: ast.Module, function: Function) -> Sequence[ast.stmt] | None:
    if function[1] == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function[1]:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == function[2]:
                return node.body
    return None
