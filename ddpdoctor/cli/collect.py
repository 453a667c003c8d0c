"""`ddpdoctor collect`: the facts of this node that a bug report needs, as one JSON file without secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddpdoctor.app.request import Request

__all__ = ["collect"]


def collect(
    request: Request,
    output_file: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="Write to FILE instead of standard output (-).")
    ] = None,
    hosts_as_aliases: Annotated[
        bool,
        typer.Option(
            "--hosts-as-aliases", help="Replace host names and addresses with aliases, consistently in all files."
        ),
    ] = False,
) -> int:
    """Save the facts of this node and its ranks for a bug report, as JSON without secrets."""
    from ddpdoctor.app.collect import collect_node

    collected = collect_node(request, output_file, hosts_as_aliases=hosts_as_aliases)
    if collected is None:
        return 0
    path, failures = collected.path, collected.failures
    if path is None:
        sys.stdout.write(collected.text)
    for failure in failures:
        print(f"error: could not {failure}", file=sys.stderr)
    if path is not None and not failures and not request.quiet:
        print(f"facts written to {path}; judge them anywhere:\nddpdoctor check --facts {path}", file=sys.stderr)
    return 3 if failures else 0
