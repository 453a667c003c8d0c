"""`ddpdoctor hang`: which rank of a stuck job waits where, and which one does not."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor.app.request import Request
from ddpdoctor.cli.options import seconds_option

__all__ = ["hang"]

WATCH_SECONDS = 2.0


def hang(
    request: Request,
    pids: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="PID…", help="Ranks, or processes that started them; default: all ranks of this node.", min=1
        ),
    ] = None,
    watch: Annotated[
        float,
        typer.Option("--watch", metavar="SECONDS", parser=seconds_option, help="How long to watch the ranks."),
    ] = WATCH_SECONDS,
    no_stacks: Annotated[bool, typer.Option("--no-stacks", help="Do not read stacks with py-spy.")] = False,
    ras: Annotated[
        bool,
        typer.Option("--ras", help="Also query NCCL's RAS, which has crashed jobs: only if the job is lost anyway."),
    ] = False,
) -> int:
    """Find out why a running job hangs, without stopping or signaling any process."""
    from ddpdoctor.app.hang import HangOptions, examine_running_job
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.screens.hang import draw

    options = HangOptions(pids or (), watch, has_stacks=not no_stacks, has_ras=ras)
    report, facts = examine_running_job(request, options)
    named = {skip.reason for skip in report.skipped if skip.unanswered}
    return emit(report, request, below=draw(facts, width=width(), colour=has_colour(request), named=named))
