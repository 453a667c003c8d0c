"""The table of `ddpdoctor rehearse`: where each rank ended."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.rehearsal import RankEnd, RehearsedRank

__all__ = ["draw"]

WORDS = {
    RankEnd.FINISHED: "finished",
    RankEnd.ENDED: "ended by the rehearsal",
    RankEnd.EXITED: "exited",
    RankEnd.RAISED: "raised",
    RankEnd.KILLED: "was killed",
    RankEnd.WAITING: "waits",
    RankEnd.RUNNING: "was running",
    RankEnd.NOT_STARTED: "was not started",
}


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """One row for the ranks that ended alike; nothing if all ran to their end."""
    rehearsal = facts.rehearsal
    if rehearsal is None or all(rank.end in (RankEnd.FINISHED, RankEnd.ENDED) for rank in rehearsal.ranks):
        return ""
    table = Table(box=None, pad_edge=False)
    for name in ("ranks", "steps", "end", "at"):
        table.add_column(name, overflow="fold")
    rows: dict[tuple[str, ...], list[int]] = {}
    for rank in rehearsal.ranks:
        rows.setdefault((str(rank.steps), _end(rank), _place(rank)), []).append(rank.rank)
    for (steps, end, place), ranks in rows.items():
        table.add_row(ranges(ranks).partition(" ")[2], steps, Text(end), Text(place))
    pieces: list[RenderableType] = [table]
    return draw_all(pieces, width=width, colour=colour)


def _end(rank: RehearsedRank) -> str:
    if rank.end is RankEnd.WAITING and rank.call is not None:
        return f"waits in {rank.call.operation}"
    if rank.error is not None:
        return f"raised {rank.error}"
    return WORDS[rank.end]


def _place(rank: RehearsedRank) -> str:
    place = rank.call.place if rank.call is not None else rank.place
    return "" if place is None else str(place)
