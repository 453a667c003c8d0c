"""`ddpdoctor lint`: launch commands and files, judged without starting anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Format, Request, UsageError

if TYPE_CHECKING:
    from ddpdoctor.findings import Report

__all__ = ["lint"]


def lint(
    request: Request,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE…", help="Scripts, notebooks, folders of them, job files, manifests."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="LINE", help="The launch command of one node; repeat for each node."),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option("--torch", metavar="VERSION", help="Parse as this version of torch does, such as 2.15."),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Print the safe corrections of scripts as a patch for git apply or patch -p1."),
    ] = False,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="With --diff: print the other corrections, marked as unsafe; read them first."),
    ] = False,
    show_processes: Annotated[
        bool, typer.Option("--show-processes", help="Print the processes that would start, host by host.")
    ] = False,
) -> int:
    """Check a launch command (after --), one command per node, or files; start nothing."""
    if show_processes:
        return _show_processes(request, files or [], node or [], torch)
    from ddpdoctor.app.lint import LintInputs, lint_inputs
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.screens.lint import draw

    if diff and request.format is not Format.table and request.output is None:
        raise UsageError(f"--diff and --format {request.format.value} both write to standard output; add --output FILE")
    if unsafe and not diff:
        raise UsageError("--unsafe needs --diff")
    report, facts = lint_inputs(request, LintInputs(files or (), node or (), torch, diff))
    if diff:
        return _show_patch(report, request, unsafe=unsafe)
    return emit(report, request, draw(facts, width=width(), colour=has_colour(request)))


def _show_processes(request: Request, files: list[str], nodes: list[str], torch: str | None) -> int:
    """The table of imagined processes, or their JSON."""
    from ddpdoctor.app.imagined_processes import imagined_processes
    from ddpdoctor.cli.output import emit_text, has_colour, width
    from ddpdoctor.cli.screens.processes import as_json, draw
    from ddpdoctor.privacy.reports import without_secrets

    if request.format not in (Format.table, Format.json):
        raise UsageError(f"--show-processes with --format {request.format.value}: expected table or json")
    jobs = imagined_processes(request, files, nodes, torch)
    if not sys.stdout.isatty() or request.output is not None:
        jobs = without_secrets(jobs)
    text = as_json(jobs) if request.format is Format.json else None
    table = draw(jobs, width=width(), colour=has_colour(request))
    return 0 if emit_text(table, text, request) else 3


def _show_patch(report: Report, request: Request, *, unsafe: bool) -> int:
    """The patch on standard output, the number of corrections on standard error, the report in --output."""
    from ddpdoctor.app.patch import patch
    from ddpdoctor.cli.output import as_file, emit_text

    text, count, failures = patch(report.findings, unsafe=unsafe, is_public=not sys.stdout.isatty())
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if not request.quiet:
        total = len(report.findings)
        others = sum(bool(f.edits) and f.is_corrected_safely is unsafe for f in report.findings)
        more = "" if unsafe or not others else f"; --unsafe prints {others} more, which need a review"
        print(f"ddpdoctor: {count} of {total} findings corrected{more}; without --diff all are shown", file=sys.stderr)
    written = True
    if request.output is not None:
        written = emit_text("", as_file(report, request), request)
    return report.exit_code(request.fail_on.severity) if written else 3
