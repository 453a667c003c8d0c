"""`ddpdoctor run -- LAUNCH…`: check, then run the job; if it fails, triage its output."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Request
from ddpdoctor.cli.options import JoinTimeout, Quick
from ddpdoctor.system.timeouts import CallTimeout

if TYPE_CHECKING:
    from ddpdoctor.app.run import FailureDiagnosis, JobEnd
    from ddpdoctor.findings import Finding

__all__ = ["run"]


def run(
    request: Request,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start the job in spite of errors.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Start the job without a check.")] = False,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Check without starting ranks.")] = False,
    no_meet: Annotated[bool, typer.Option("--no-meet", help="Check this node only.")] = False,
    join_timeout: JoinTimeout = 30.0,
    quick: Quick = False,
    watch: Annotated[bool, typer.Option("--watch", help="Compare what the ranks call, for the first steps.")] = False,
    watch_steps: Annotated[
        int, typer.Option("--watch-steps", metavar="N", min=1, help="Optimizer steps of --watch.")
    ] = 20,
) -> int:
    """Check, then run the job with its own terminal, signals and exit code; if it fails, find the cause."""
    from ddpdoctor.app.run import RunOptions, run_job

    flags = (("--no-probe", no_probe), ("--no-meet", no_meet), ("--quick", quick))
    words = (*(word for word, is_set in flags if is_set), "--join-timeout", str(join_timeout))
    end = run_job(request, RunOptions(not no_check, words, anyway, watch_steps if watch else None, _tell))
    if end.has_failed:
        try:
            _show_triage(request, end)
        except Exception as error:  # including a bug of ddpdoctor: the exit code remains that of the job
            why = error if isinstance(error, (OSError, CallTimeout)) else f"a bug in ddpdoctor: {error!r}"
            with contextlib.suppress(OSError):  # standard error is closed or full: the exit code remains
                print(f"\nerror: no triage of the job, which ended with exit code {end.code}: {why}", file=sys.stderr)
    return end.code


def _tell(finding: Finding) -> None:
    """Print the first difference between the ranks while the job still waits."""
    place = f"{finding.where.file}:{finding.where.line}: " if finding.where.file else ""
    print(f"ddpdoctor: watch: {place}{finding.code} {finding.text}", file=sys.stderr, flush=True)


def _show_triage(request: Request, end: JobEnd) -> None:
    """Triage the job's output, print the result on standard error, and write the report if a file is named."""
    from ddpdoctor.app.run import diagnose

    diagnosis = diagnose(request, end)
    try:
        _show(request, end, diagnosis)
    finally:
        diagnosis.folder.remove()


def _show(request: Request, end: JobEnd, diagnosis: FailureDiagnosis) -> None:
    from ddpdoctor.app.output_file import CannotWriteError, write_file
    from ddpdoctor.cli.output import WIDEST, as_file, has_colour
    from ddpdoctor.render import render

    report = diagnosis.report
    colour = has_colour(request, sys.stderr)
    looks = {"quiet": request.quiet, "verbose": request.verbose}
    text = render(report, "table", width=WIDEST, colour=colour, **looks)
    if not report.findings:
        text = "Its output does not show why; rerun it with NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL\n"
    kept = "it printed nothing" if diagnosis.output is None else f"its output is kept in {diagnosis.output}"
    name = f" ({signal.Signals(end.code - 128).name})" if end.code - 128 in set(signal.Signals) else ""
    print(f"\nddpdoctor: the job ended with exit code {end.code}{name}; {kept}", file=sys.stderr)
    sys.stderr.write(text)
    sys.stderr.flush()
    if diagnosis.output is not None:
        diagnosis.folder.keep()
    if request.output is None:
        return
    try:
        write_file(request.output, as_file(report, request))
    except CannotWriteError as error:
        print(f"error: {error}", file=sys.stderr)
