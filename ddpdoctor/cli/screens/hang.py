"""The table of `ddpdoctor hang`: what each rank of this node does."""

from __future__ import annotations

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.dumps.outlier import hung_jobs
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """One line per rank, and what could not be seen."""
    from rich.table import Table
    from rich.text import Text

    if facts.hang is None or not facts.hang.processes:
        return ""
    table = Table(box=None, pad_edge=False)
    for heading in ("rank", "pid", "state", "cpu", "what it does"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("rank", "pid", "cpu") else "left")
    for job in hung_jobs(facts.hang):
        for each in job.ranks:
            process = each.process
            share = "n/a" if process.cpu_share is None else f"{process.cpu_share:.0%}"
            rank = "n/a" if process.rank is None else str(process.rank)
            table.add_row(rank, str(process.pid), process.state or "n/a", share, Text(each.words))
    found = [each for job in hung_jobs(facts.hang) for each in job.ranks]
    if found and not any(each.is_still for each in found):
        table.add_row("", "", "", "", Text("all of them moved while they were watched"))
    notes = [Text(gap.reason) for gap in facts.hang.gaps]
    return draw_all([table, *notes], width=width, colour=colour)
