"""`ddpdoctor rehearse -- LAUNCH…`: the user's own script for a few steps on CPU, before any GPU is used."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ddpdoctor.app.request import Request
from ddpdoctor.cli.options import seconds_option

__all__ = ["rehearse"]


def rehearse(
    request: Request,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, help="Optimizer steps; default: 3, and more for 5 s if they are short."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="SECONDS", parser=seconds_option, help="Time limit of the script itself."),
    ] = 60.0,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", min=1, help="Maximum number of ranks; default: 8, at least 2 nodes of 2."),
    ] = None,
    epoch_steps: Annotated[
        int | None,
        typer.Option("--epoch-steps", metavar="N", min=1, help="Batches per epoch, so that epochs end soon."),
    ] = None,
    no_scratch: Annotated[
        bool, typer.Option("--no-scratch", help="Let the script write to the real working folder.")
    ] = False,
    network: Annotated[bool, typer.Option("--network", help="Let the script use the network.")] = False,
) -> int:
    """Run the script of a launch command for a few steps on CPU, and compare what its ranks do."""
    from ddpdoctor.app.output_file import CannotWriteError
    from ddpdoctor.app.rehearse import RehearsalOptions, rehearse_launch
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.screens.rehearsal import draw

    options = RehearsalOptions(steps, seconds, ranks, epoch_steps, not no_scratch, network)
    try:
        report, facts = rehearse_launch(request, options)
    except CannotWriteError as error:
        print(f"error: could not rehearse: {error}", file=sys.stderr)
        return 3
    return emit(report, request, below=draw(facts, width=width(), colour=has_colour(request)))
