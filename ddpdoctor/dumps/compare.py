"""What the dumps of several ranks say together.

Nothing here compares clocks. Per process group the calls are laid beside each other by their sequence number. The first
number at which the ranks disagree about the call is the cause. Where they agree as far as they went, whoever did not
enter the call that others wait in is to blame, unless that rank itself waits for somebody: that chain is followed to its
end, and where it has none the ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.dumps.call_matrix import CallMatrix
from ddpdoctor.dumps.conflict import Conflict, ConflictCause, ranges
from ddpdoctor.dumps.mismatch import mismatches
from ddpdoctor.dumps.selection import choose
from ddpdoctor.dumps.waits import deadlocks
from ddpdoctor.facts.hang import Dump

__all__ = ["compare"]

MOST_CONFLICTS = 4


def compare(dumps: Sequence[Dump]) -> tuple[Conflict, ...]:
    """The disagreements among the dumps, the first cause first; empty when nothing waits and all fits."""
    chosen, _ = choose(dumps)
    matrix = CallMatrix(chosen)
    return tuple((mismatches(matrix) or deadlocks(matrix) or _unknown(matrix))[:MOST_CONFLICTS])


def _unknown(matrix: CallMatrix) -> list[Conflict]:
    """No rank is seen to wait for another: ranks whose dumps are missing or older may wait in other code."""
    waits = any(
        rank_calls.first_open is not None for by_rank in matrix.by_group.values() for rank_calls in by_rank.values()
    )
    if matrix.early and waits:
        message = (
            f"the dumps of {ranges(matrix.early)} are older than the others: the other ranks finished later collectives with "
            f"{'it' if len(matrix.early) == 1 else 'them'}; take the dumps of all ranks at the same time"
        )
        return [Conflict(ConflictCause.NO_DUMP, message, is_certain=False)]
    missing = tuple(rank for rank in range(matrix.world) if rank not in matrix.dumps)
    if not missing or not matrix.dumps:
        return []
    message = f"every collective in the dumps finished, and {ranges(missing)} wrote no dump: unknown where they wait"
    return [Conflict(ConflictCause.NO_DUMP, message, missing, is_certain=False)]
