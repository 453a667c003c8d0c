"""Why two ranks diverged: the conditions and loops around the lines at which they were."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.rehearsal import CodePlace, Difference, DifferenceKind, Side
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Sources", "begun", "explained"]

Kind = DifferenceKind
RANK_WORDS = re.compile(
    r"rank|is_main|main_process|is_master|is_chief|is_leader|is_root|primary|is_zero|SLURM_PROCID", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Around:
    """One statement around a line: an `if` or loop, and which part of it the line is in."""

    node: ast.stmt
    part: str

    @property
    def is_loop(self) -> bool:
        return isinstance(self.node, (ast.For, ast.While, ast.AsyncFor)) and self.part == "body"

    @property
    def is_branch(self) -> bool:
        return isinstance(self.node, ast.If) or (isinstance(self.node, ast.Try) and self.part == "handlers")


class Sources:
    """The texts of the user's files, parsed once. A file that is not Python has no statements."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, file: str) -> ast.Module | None:
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse(self._texts[file]) if file in self._texts else None
            except (SyntaxError, ValueError, RecursionError):
                self._trees[file] = None
        return self._trees[file]

    def line(self, place: CodePlace) -> str:
        """The text of a line, "" if it is not known."""
        lines = self._texts.get(place.file, "").split("\n")
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""

    def around(self, place: CodePlace) -> list[Around]:
        """The conditions and loops around a line in its own function, outermost first."""
        tree = self.tree(place.file)
        found: list[Around] = []
        if tree is not None:
            _descend(tree.body, place.line, found)
        return found

    def is_about_ranks(self, file: str, node: ast.stmt) -> bool:
        """Whether a condition names the rank, directly or through a variable that is made from it."""
        test = node.test if isinstance(node, (ast.If, ast.While)) else None
        if test is None:
            return False
        if RANK_WORDS.search(ast.unparse(test)):
            return True
        names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)} | {
            n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)
        }
        tree = self.tree(file)
        made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)] if tree is not None else []
        return any(
            RANK_WORDS.search(ast.unparse(each.value))
            for each in made
            for target in each.targets
            if {getattr(target, "id", None), getattr(target, "attr", None)} & names
        )


def _descend(body: Sequence[ast.stmt], line: int, found: list[Around]) -> None:
    statement = next((s for s in body if _first_line(s) <= line <= (s.end_lineno or s.lineno)), None)
    if statement is None:
        return
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        if line >= statement.body[0].lineno:
            found.clear()
            _descend(statement.body, line, found)
        return
    for part in ("body", "orelse", "handlers", "finalbody"):
        inner = getattr(statement, part, None)
        if not isinstance(inner, list):
            continue
        statements = [s for handler in inner for s in handler.body] if part == "handlers" else inner
        if any(_first_line(s) <= line <= (s.end_lineno or s.lineno) for s in statements):
            if isinstance(statement, (ast.If, ast.For, ast.While, ast.AsyncFor, ast.Try)):
                found.append(Around(statement, part))
            _descend(statements, line, found)
            return


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(d.lineno for d in decorators)]))


def explained(difference: Difference, sources: Sources, earlier: Mapping[int, set[tuple[str, int]]]) -> Difference:
    """The difference with its kind and condition, from the code around both sides, the side to blame first.

    `earlier` are the lines at which each rank made calls before.
    """
    if difference.kind is Kind.LEFT:
        return _left(difference, sources, earlier)
    if difference.kind in (Kind.ORDER, Kind.GROUPS, Kind.MODELS, Kind.SHAPE, Kind.CYCLE) and len(difference.sides) > 1:
        return _parted(difference, sources)
    return difference


def _parted(difference: Difference, sources: Sources) -> Difference:
    first, second = difference.sides[0], difference.sides[1]
    pair = _where_parted(first, second)
    if pair is None:
        return difference
    one, other = pair
    around, around_other = sources.around(one), sources.around(other)
    own = [a for a in around if not _contains(around_other, a)]
    theirs = [a for a in around_other if not _contains(around, a)]
    shared = next((a for a in own if isinstance(a.node, ast.If) and any(b.node is a.node for b in theirs)), None)
    if shared is not None and difference.kind is not Kind.SHAPE:
        kind = difference.kind if difference.kind is not Kind.ORDER else Kind.ORDER
        return replace(difference, kind=kind, condition=_place(one, shared.node))
    if difference.kind not in (Kind.ORDER, Kind.CYCLE):
        return difference
    loop = next((a for a in own if a.is_loop), None)
    ranked, ranked_other = _of_ranks(own, one, sources), _of_ranks(theirs, other, sources)
    if (ranked is None) != (ranked_other is None):
        sides = difference.sides if ranked is not None else (second, first, *difference.sides[2:])
        at = one if ranked is not None else other
        decisive = ranked or ranked_other
        assert decisive is not None
        kind = Kind.GROUPS if _has_new_group(difference) else Kind.EXTRA
        return replace(difference, kind=kind, sides=sides, condition=_place(at, decisive.node))
    loop_other = next((a for a in theirs if a.is_loop), None)
    if difference.kind is Kind.CYCLE:
        return difference
    if loop is not None and loop_other is None and other.line > (loop.node.end_lineno or 0):
        return _left_loop(replace(difference, sides=(second, first, *difference.sides[2:])), sources, one, loop)
    if loop_other is not None and loop is None and one.line > (loop_other.node.end_lineno or 0):
        return _left_loop(difference, sources, other, loop_other)
    branch, branch_other = _branch(own), _branch(theirs)
    if branch is None and branch_other is None:
        return difference
    is_first = branch_other is None or (branch is not None and one.line <= other.line)
    decisive, place = (branch, one) if is_first else (branch_other, other)
    sides = difference.sides if is_first else (second, first, *difference.sides[2:])
    assert decisive is not None
    kind = Kind.EXTRA if sources.is_about_ranks(place.file, decisive.node) else Kind.DATA
    kind = Kind.GROUPS if _has_new_group(difference) else kind
    return replace(difference, kind=kind, sides=sides, condition=_place(place, decisive.node))


def begun(difference: Difference, earlier: Iterable[tuple[Side, Side]], sources: Sources) -> Difference:
    """The difference at the first pair of calls that one rank made in a branch on the rank and that fitted by chance.

    `earlier` are the pairs of calls of two sides that matched, in order. A checkpoint that only rank 0 saves may contain a
    barrier, which is paired with the next barrier of the others: the calls differ only later.
    """
    if difference.kind is not Kind.ORDER or difference.condition is not None:
        return difference
    for first, second in earlier:
        pair = _where_parted(first, second)
        if pair is None:
            continue
        around, around_other = sources.around(pair[0]), sources.around(pair[1])
        own = [a for a in around if not _contains(around_other, a)]
        theirs = [a for a in around_other if not _contains(around, a)]
        if (_of_ranks(own, pair[0], sources) is None) == (_of_ranks(theirs, pair[1], sources) is None):
            continue
        assert first.call is not None
        return _parted(replace(difference, number=first.call.number, sides=(first, second)), sources)
    return difference


def _of_ranks(found: Sequence[Around], place: CodePlace, sources: Sources) -> Around | None:
    """The first condition on the rank."""
    return next((a for a in found if isinstance(a.node, ast.If) and sources.is_about_ranks(place.file, a.node)), None)


def _has_new_group(difference: Difference) -> bool:
    return "new_group" in (side.call.operation for side in difference.sides if side.call is not None)


def _where_parted(first: Side, second: Side) -> tuple[CodePlace, CodePlace] | None:
    """The lines of the outermost function in which the two sides are at different lines."""
    one, other = list(_frames(first))[::-1], list(_frames(second))[::-1]
    for a, b in zip(one, other, strict=False):
        if a != b:
            return (a, b) if (a.file, a.function) == (b.file, b.function) else None
    return None


def _frames(side: Side) -> tuple[CodePlace, ...]:
    return side.call.places if side.call is not None else side.places


def _contains(found: Sequence[Around], wanted: Around) -> bool:
    return any(each.node is wanted.node and each.part == wanted.part for each in found)


def _branch(found: Sequence[Around]) -> Around | None:
    return next((each for each in found if each.is_branch), None)


def _place(at: CodePlace, node: ast.stmt) -> CodePlace:
    return CodePlace(at.file, node.lineno, at.function)


def _left_loop(difference: Difference, sources: Sources, inside: CodePlace, loop: Around) -> Difference:
    """The first side left a loop in which the second one is."""
    condition = _decision(loop.node, inside.line)
    if condition is not None:
        kind = Kind.LEFT if sources.is_about_ranks(inside.file, condition) else Kind.DATA
        return replace(difference, kind=kind, condition=_place(inside, condition))
    is_data = isinstance(loop.node, ast.While) and not _is_constant(loop.node)
    return replace(difference, kind=Kind.DATA if is_data else Kind.UNEVEN, condition=_place(inside, loop.node))


def _is_constant(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant)


def _decision(loop: ast.stmt, line: int) -> ast.If | None:
    """The `if` in a loop that continues or leaves it."""
    found = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.If)
        and any(isinstance(s, (ast.Continue, ast.Break, ast.Return)) for s in (*node.body, *node.orelse))
    ]
    return found[0] if found else None


def _left(difference: Difference, sources: Sources, earlier: Mapping[int, set[tuple[str, int]]]) -> Difference:
    """A rank left: out of a loop that the others continue, before a branch that only others enter, or by an early exit."""
    absent, present = difference.sides[0], difference.sides[1] if len(difference.sides) > 1 else None
    if present is None or present.place is None:
        return difference
    for place in _frames(present):
        around = sources.around(place)
        loops = [a for a in around if a.is_loop]
        was_there = all((place.file, place.line) in earlier.get(rank, set()) for rank in absent.ranks)
        if loops and was_there:
            return _left_loop(difference, sources, place, loops[-1])
        branch = next(
            (a for a in around if isinstance(a.node, ast.If) and sources.is_about_ranks(place.file, a.node)), None
        )
        if branch is not None and not was_there:
            sides = (present, absent, *difference.sides[2:])
            return replace(difference, kind=Kind.EXTRA, sides=sides, condition=_place(place, branch.node))
        is_data = next((a for a in around if isinstance(a.node, ast.If) and not was_there), None)
        if is_data is not None and not _is_main_guard(is_data.node):
            sides = (present, absent, *difference.sides[2:])
            return replace(difference, kind=Kind.DATA, sides=sides, condition=_place(place, is_data.node))
    return difference


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
