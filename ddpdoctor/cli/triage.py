"""`ddpdoctor triage`: the first cause in logs and dumps of a failed job, its rank or node, its consequences, and the fix."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ddpdoctor.app.request import Request, UsageError

__all__ = ["triage"]


def triage(
    request: Request,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH…", help="Logs, dumps, outputs of tools, folders and archives; - is standard input."
        ),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Show only the job with this name.")] = None,
    good: Annotated[
        list[str] | None,
        typer.Option("--good", metavar="PATH", help="Logs of a run that completed: show what only the failed one has."),
    ] = None,
) -> int:
    """Find the first cause in logs, log folders and dumps of a job that failed or hung."""
    from ddpdoctor.app.triage_reading import triage_inputs
    from ddpdoctor.cli.output import emit

    started = time.monotonic()
    if not paths:
        raise UsageError("nothing to read: give log files, folders, dumps, or - for standard input")
    return emit(triage_inputs(paths, request, started=started, job=job, good=good or ()), request)
