"""`python -m ddpdoctor.cli.probe_report`: judges and reports the facts of a probe, which a supervisor passes on.

A process of its own, so that the supervisors stay small: the rules, Typer and rich are loaded here only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpdoctor.cli import main

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request

__all__ = ["report"]


def report(order: dict[str, Any]) -> int:
    """Judge and write; the exit code."""
    from ddpdoctor.app.probe_verdict import judge_probe
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.screens.probe import draw

    request = _request(order)
    judged, facts = judge_probe(order, request)
    table = "" if request.quiet else draw(facts, width=width(), colour=has_colour(request))
    return emit(judged, request, table)


def _request(order: dict[str, Any]) -> Request:
    """The options of the probe's own command line."""
    from ddpdoctor.app.request import FailOn, Format, Request
    from ddpdoctor.app.settings import read_settings
    from ddpdoctor.cli.progress import ConsoleListener

    options, settings = order["options"], read_settings(os.environ)
    is_quiet = options["quiet"] or not order["is_head"]
    return Request(
        format=Format(options["format"]),
        output=Path(options["output"]) if options["output"] else None,
        select=options["select"] or settings.values.get("select"),  # type: ignore[arg-type]
        ignore=settings.ignored(options["ignore"]),
        fail_on=FailOn(options["fail_on"]),
        quiet=is_quiet,
        verbose=options.get("verbose", False),
        no_color=options["no_color"],
        listener=ConsoleListener(is_quiet=is_quiet),
    )


def _from_stdin() -> int:
    from ddpdoctor.app.request import UsageError

    try:
        return report(json.load(sys.stdin))
    except (
        UsageError
    ) as error:  # errors that only the rules can detect, such as --select with a prefix that no code has
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    main(command=_from_stdin)
