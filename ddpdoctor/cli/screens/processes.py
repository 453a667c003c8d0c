"""The table of imagined processes: `ddpdoctor lint FILE --show-processes`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.app.imagined_processes import ShownJob
from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.job import Process
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.render.plain import json_printable, printable

__all__ = ["as_json", "draw"]

MOST_ROWS = 64
"""Processes of one job that the table lists; JSON has all of them."""
COLUMNS = ("node", "host", "rank", "local_rank", "world_size", "command")


def draw(jobs: Sequence[ShownJob], *, width: int, colour: bool) -> str:
    """One table per job, one row per process."""
    pieces: list[RenderableType] = []
    for number, job in enumerate(jobs, start=1):
        head = f"job {number}: {printable(job.source)}, {len(job.processes)} processes"
        head += f", master {printable(job.master)}" if job.master else ""
        pieces.append(Text(head + ("" if job.is_certain else " (in a branch that may not run)"), style="bold"))
        pieces.append(_table(job.processes))
        more = len(job.processes) - MOST_ROWS
        if more > 0:
            pieces.append(Text(f"and {more} more (--format json lists them)", style="dim"))
        pieces += [Text(f"not understood: {printable(reason)}", style="magenta") for reason in job.left_out]
    if not jobs:
        pieces.append(Text("no process: ddpdoctor found no launch in it that it can read"))
    return draw_all(pieces, width=width, colour=colour)


def _table(processes: Sequence[Process]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name.replace("_size", ""), overflow="fold", no_wrap=name != "command")
    for process in processes[:MOST_ROWS]:
        numbers = (process.rank, process.local_rank, process.world_size)
        row = [str(process.node), printable(process.host or "?"), *("?" if n is None else str(n) for n in numbers)]
        table.add_row(*row, Text(printable(_command(process))))
    return table


def _command(process: Process) -> str:
    return shlex.join(word.replace(UNKNOWN, "?") for word in process.argv)


def as_json(jobs: Sequence[ShownJob]) -> str:
    """All processes as JSON values; null is what cannot be known."""
    return json_printable(json.dumps([_job(job) for job in jobs], indent=2, ensure_ascii=False)) + "\n"


def _job(job: ShownJob) -> dict[str, object]:
    return {
        "source": job.source,
        "master": job.master or None,
        "certain": job.is_certain,
        "not_understood": list(job.left_out),
        "processes": [_process(process) for process in job.processes],
    }


def _process(process: Process) -> dict[str, object]:
    return {
        "node": process.node,
        "host": process.host,
        "rank": process.rank,
        "local_rank": process.local_rank,
        "world_size": process.world_size,
        "started_by": process.started_by,
        "argv": [word.replace(UNKNOWN, "?") for word in process.argv],
        "cwd": process.cwd,
    }
