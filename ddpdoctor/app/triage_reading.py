"""`ddpdoctor triage` while it reads: its progress, and what Ctrl-C leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.good_runs import compared_in_folder, compared_with_good
from ddpdoctor.app.progress import reporting
from ddpdoctor.app.triage import triaged
from ddpdoctor.collectors.log.inputs import STDIN
from ddpdoctor.collectors.log.reading_watch import ReadingWatch, watched

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.findings import Report

__all__ = ["triage_inputs"]


def triage_inputs(
    paths: Sequence[str], request: Request, *, started: float, job: str | None = None, good: Sequence[str] = ()
) -> Report:
    """The report about these inputs, compared with `good` runs. Ctrl-C ends the reading: it then covers what was read."""
    with reporting(request.listener) as progress:

        def begun(total: int, is_large: bool) -> None:
            (progress.phase if is_large else progress.step)(f"reading {_pieces(0, total)}")

        def told(done: int, total: int) -> None:
            progress.step(f"reading {_pieces(done, total)}" if done < total else "looking for the cause")

        if STDIN in paths:
            progress.step("reading standard input")
        watch = ReadingWatch(begun, told)
        with watched(watch):
            report, _ = triaged(paths, request, started=started, job=job)
            if good and not watch.is_interrupted:
                report = compared_with_good(report, paths, good, request, started=started)
            elif not watch.is_interrupted:
                report = compared_in_folder(report, request)
    return replace(report, is_interrupted=watch.is_interrupted)


def _pieces(done: int, total: int) -> str:
    """Files, and pieces of large ones."""
    return f"logs: {done} of {total} pieces done" if total > 1 else "the log"
