"""`ddpdoctor compare`: what differs between the facts that `ddpdoctor collect` saved on several nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor.app.request import Format, Request

__all__ = ["compare"]


def compare(
    request: Request,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE FILE…", help="Facts that `ddpdoctor collect` saved, or outputs of tools; one node each."
        ),
    ] = None,
) -> int:
    """Show what differs between collected nodes: the majority against the others, worst first."""
    from ddpdoctor.app.compare import compare_nodes
    from ddpdoctor.cli.output import as_file, emit_text, has_colour, shareable, width
    from ddpdoctor.cli.screens.compare import draw

    report, nodes = compare_nodes(request, files or ())
    text = None if request.format is Format.table else as_file(report, request)
    table = draw(report, nodes, width=width(), colour=has_colour(request), quiet=request.quiet)
    table = shareable(table, request)
    return report.exit_code(request.fail_on.severity) if emit_text(table, text, request) else 3
