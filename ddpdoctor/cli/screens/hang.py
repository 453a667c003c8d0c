"""The tables of `ddpdoctor hang`: what the ranks of each job on this node do, differing ranks first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.dumps.outlier import HungJob, hung_jobs
from ddpdoctor.dumps.rank_activity import RankActivity
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]

MOST_NUMBERS = 8
"""Most ranks and PIDs that one row lists; of more, the first and last are shown."""


def draw(facts: Facts, *, width: int, colour: bool, named: Collection[str] = ()) -> str:
    """One table per job: ranks that do the same share a row; then what could not be read, without reasons already `named`."""
    if facts.hang is None or not facts.hang.processes:
        return ""
    jobs = hung_jobs(facts.hang)
    pieces: list[RenderableType] = []
    for number, job in enumerate(jobs, start=1):
        if len(jobs) > 1:
            pieces.append(Text(f"job {number} of {len(jobs)}", style="bold"))
        pieces.append(_table(job))
        if not any(rank.is_still for rank in job.ranks):
            pieces.append(Text("all ranks moved while they were watched"))
    pieces += [Text(gap.reason, style="dim") for gap in facts.hang.gaps if gap.reason not in named]
    return draw_all(pieces, width=width, colour=colour)


def _table(job: HungJob) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", overflow="fold")
    table.add_column("pid", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("CPU", justify="right", no_wrap=True)
    table.add_column("doing", overflow="fold")
    for ranks, is_outlier in _rows(job):
        first = ranks[0].process
        share = "n/a" if first.cpu_share is None else f"{first.cpu_share:.0%}"
        numbers = _numbers([rank.process.rank for rank in ranks])
        row = (
            numbers,
            _numbers([rank.process.pid for rank in ranks]),
            first.state or "n/a",
            share,
            Text(ranks[0].words),
        )
        table.add_row(*row, style="bold yellow" if is_outlier else "")
    return table


def _rows(job: HungJob) -> list[tuple[list[RankActivity], bool]]:
    """The ranks that do the same, those that differ from the waiting ones first."""
    rows: dict[tuple[bool, str, str | None], list[RankActivity]] = {}
    for rank in job.ranks:
        rows.setdefault((rank not in job.outliers, rank.words, rank.process.state), []).append(rank)
    return [(ranks, not is_alike) for (is_alike, _, _), ranks in sorted(rows.items(), key=lambda row: row[0][0])]


def _numbers(found: Iterable[int | None]) -> str:
    known: Sequence[str] = ["n/a" if number is None else str(number) for number in found]
    return ", ".join(known) if len(known) <= MOST_NUMBERS else f"{known[0]} … {known[-1]} ({len(known)})"
