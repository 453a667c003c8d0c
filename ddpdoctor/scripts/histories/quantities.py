"""Which part of the data a number is about: of one rank, of all ranks, or counted once per rank.

| number | divided by the samples of the rank | divided by len(dataset) | all_reduce SUM | shown or decides |
|---|---|---|---|---|
| counted on the part of the rank | mean of the part | part over whole | count of the whole | |
| mean of the part | | | sum of means | missing if it selects the best model: BEST_OF_ONE_RANK |
| part over whole | | | mean of the whole | missing: PART_OVER_WHOLE |
| sum of means | | | | missing: SUM_AS_MEAN |
| counted on the whole by every rank | mean of the whole | mean of the whole | whole times ranks | |
| whole times ranks | | missing: COUNTED_BY_EVERY_RANK | | |

A division by the world size turns the last two into a mean again.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import DiffersBy, Power, Traced, TracedKind

if TYPE_CHECKING:
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["QUANTITIES", "added", "batch_marks", "combined", "compared", "is_mean_loss", "reduced", "shown"]

QUANTITIES = frozenset(
    (
        "of-part",
        "of-whole",
        "counted-part",
        "counted-whole",
        "part-mean",
        "mean",
        "sum-of-means",
        "part-over-whole",
        "whole-times-world",
    )
)
"""The marks of this table; values computed from a marked value are marked as well."""


class Execution(Protocol):
    """What this table needs of the executor."""

    noted: dict[str, tuple[Module, ast.AST]]

    @property
    def module(self) -> Module:
        """The running file."""

    def in_loader_loop(self) -> bool:
        """Whether the innermost loop reads batches."""

    def now(self, value: Traced) -> Traced:
        """The present state of a value."""

    def mistake(self, kind: MistakeKind, node: ast.AST, earlier: ast.AST | None = None, subject: str = "") -> None:
        """Record a mistake."""

    def mistake_in(
        self, kind: MistakeKind, module: Module, node: ast.AST, earlier: ast.AST | None = None, subject: str = ""
    ) -> None:
        """Record a mistake in a file."""

    def only_rank(self) -> tuple[DiffersBy, object] | None:
        """The only rank that executes this."""


_LOCAL = frozenset(("of-part", "counted-part", "part-mean", "part-over-whole"))
_MEANS = ("mean", "nanmean")


def batch_marks(*, is_split: bool, is_whole: bool) -> frozenset[str]:
    """The marks of the batches of a loader."""
    return frozenset(("of-part",)) if is_split else frozenset(("of-whole",)) if is_whole else frozenset()


def is_mean_loss(name: str, kw: dict[str, Traced]) -> bool:
    """Whether a function or module is a loss that averages over the batch: the default of torch."""
    word = name.rpartition(".")[2]
    reduction = kw.get("reduction")
    is_loss = word.endswith(("Loss", "_loss")) or word in (
        "cross_entropy",
        "binary_cross_entropy",
        "mse_loss",
        "kl_div",
    )
    return is_loss and (reduction is None or reduction.constant == "mean") and name.startswith("nn.")


def added(ex: Execution, value: Traced, operand: Traced) -> Traced:
    """A sum over the batches of a loader."""
    if not ex.in_loader_loop():
        return value
    value = value.without("mean")
    counted = {"counted-part"} if operand.has("of-part") else {"counted-whole"} if operand.has("of-whole") else set()
    return value.marked(*counted) if counted else value


def combined(ex: Execution, op: ast.operator, left: Traced, right: Traced, result: Traced, node: ast.AST) -> Traced:
    """The marks of a computed number."""
    if isinstance(op, ast.Mult) and "mean" in result.marks:
        other = right if left.has("mean") else left
        return result if other.kind is TracedKind.CONSTANT else result.without("mean", "sum-of-means")
    if not isinstance(op, ast.Div | ast.FloorDiv):
        return result
    if right.has("world") or right.has("summed"):
        return result.without("sum-of-means", "whole-times-world", "part-over-whole")
    is_given = isinstance(right.symbol, tuple) and right.symbol[:1] in (("variable",), ("option",))
    if not right.certain or is_given:  # it may be the number of ranks
        result = result.without("sum-of-means")
    if right.marks & {"counted-part", "of-part"}:
        return result.without("counted-part", "of-part").marked("part-mean", "mean")
    if right.has("dataset-length") and left.has("counted-part") and not left.has("summed"):
        ex.noted["part-over-whole"] = (ex.module, node)
        return result.without("counted-part").marked("part-over-whole")
    is_sum = left.has("counted-whole") and left.has("summed") and left.power == Power(1, 0)
    if right.has("dataset-length") and is_sum:
        ex.noted["whole-times-world"] = (ex.module, node)
        return result.marked("whole-times-world")
    if left.has("counted-part"):
        return result.without("counted-part").marked("part-mean", "mean")
    return result


def reduced(ex: Execution, before: Traced, marks: frozenset[str], node: ast.AST, *, sums: bool) -> frozenset[str]:
    """The marks of a number after an all_reduce over all ranks."""
    left = marks - _LOCAL
    if sums and before.has("mean") and before.power == Power() and not before.has("counted-whole"):
        ex.noted["sum-of-means"] = (ex.module, node)
        return left | {"sum-of-means"}
    return left


def shown(ex: Execution, value: Traced) -> None:
    """A number is printed or logged."""
    present = ex.now(value)
    if present.kind is TracedKind.DICT:
        for entry in present.fields.values():
            shown(ex, entry)
        return
    for mark, kind in _SHOWN.items():
        if not present.has(mark):
            continue
        if mark == "sum-of-means" and present.power != Power(1, 0):
            continue
        if mark == "part-over-whole" and DiffersBy.DATA not in present.origins:
            continue
        module, node = ex.noted[mark]
        ex.mistake_in(kind, module, node)


_SHOWN = {
    "part-over-whole": MistakeKind.PART_OVER_WHOLE,
    "whole-times-world": MistakeKind.COUNTED_BY_EVERY_RANK,
    "sum-of-means": MistakeKind.SUM_AS_MEAN,
}


def compared(ex: Execution, node: ast.Compare, values: list[Traced]) -> None:
    """A comparison decides whether the model is saved: with a metric of the whole data set, or of one rank?"""
    local = [v for v in values if v.marks & {"part-mean", "counted-part", "part-over-whole"} and not v.has("summed")]
    if not local or not isinstance(node.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE):
        return
    if not any(DiffersBy.DATA in v.origins for v in local):
        return
    parent = ex.module.index.parents.get(node)
    if not isinstance(parent, ast.If) or parent.test is not node:
        return
    saves = [c for s in parent.body for c in ast.walk(s) if isinstance(c, ast.Call) and _is_save(c)]
    rank = ex.only_rank()
    if saves and (rank is None or rank[0] is DiffersBy.RANK):
        ex.mistake(MistakeKind.BEST_OF_ONE_RANK, node)


def _is_save(call: ast.Call) -> bool:
    name = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    return name.startswith("save")
