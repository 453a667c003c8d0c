"""`ddpdoctor check`: the preflight of this machine, of a launch line, or of the job that the environment describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Request
from ddpdoctor.cli.options import JoinTimeout, Quick

if TYPE_CHECKING:
    from ddpdoctor.findings import Report

__all__ = ["check"]


def check(
    request: Request,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Do not start ranks.")] = False,
    no_meet: Annotated[bool, typer.Option("--no-meet", help="Check this node only.")] = False,
    join_timeout: JoinTimeout = 30.0,
    quick: Quick = False,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Also run the script on CPU for a few steps.")] = False,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret",
            metavar="FILE",
            help="Accept only nodes and ranks with this secret: at least 16 bytes, mode 0600. `none`: accept all.",
        ),
    ] = None,
    write_nodes: Annotated[
        str | None,
        typer.Option(
            "--write-nodes",
            metavar="GOOD,BAD",
            help="Write the names of good and bad nodes to two files, for srun --exclude.",
        ),
    ] = None,
) -> int:
    """Check this machine, or the launch command after --, before the job starts."""
    from ddpdoctor.cli.output import emit, emit_shortly

    if (report := _of_files(request)) is not None:
        return emit(report, request)
    from ddpdoctor.app.preflight import Detail, preflight
    from ddpdoctor.app.preflight_plan import PreflightOptions

    options = PreflightOptions(not no_probe, no_meet, join_timeout, write_nodes, quick, rehearse, secret)
    result = preflight(request, options)
    if result.detail is Detail.NOTHING:
        return result.report.exit_code(request.fail_on.severity)
    if result.detail is Detail.ONE_LINE:
        return emit_shortly(result.report, request)
    return emit(result.report, request)


def _of_files(request: Request) -> Report | None:
    """The report about the files of `--facts`, None if they are the saved facts of one machine, or none were given."""
    if request.facts is None:
        return None
    from ddpdoctor.app.facts_files import of_files

    return of_files(request)
