"""`ddpdoctor collect`: what a bug report needs of this node as one JSON file, secrets removed."""

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
        typer.Option("--hosts-as-aliases", help="Replace the names and addresses of hosts, alike in all files."),
    ] = False,
) -> int:
    """Save what a bug report needs of this node, and of every rank on it, as JSON, secrets removed."""
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
