"""`ddpdoctor collect`: the facts of this node as one JSON file, secrets removed, for a bug report or `--facts`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common

__all__ = ["collect"]

PRIVATE = 0o600
"""Facts name hosts, users and processes: the file is its owner's to hand on."""


def collect(
    common: Common,
    output_file: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="Write to FILE instead of standard output (-).")
    ] = None,
) -> int:
    """Save the facts of this node as JSON, secrets removed."""
    from ddpdoctor.cli.output import CannotWriteError, check_target, write_file
    from ddpdoctor.cli.reading import facts_for
    from ddpdoctor.collectors import SECONDS
    from ddpdoctor.facts.codec import encode

    path = common.output if output_file is None else output_file
    if path is not None and str(path) == "-":
        path = None
    if path is not None:
        check_target("-o", path)
    facts, failures = facts_for(common, tuple(SECONDS))
    text = json.dumps(encode(facts), indent=1) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        try:
            write_file(path, text, PRIVATE)
        except CannotWriteError as error:
            failures = (*failures, str(error))
    for failure in failures:
        print(f"ddpdoctor: could not {failure}", file=sys.stderr)
    if path is not None and not failures and not common.quiet:
        print(f"facts written to {path}; judge them anywhere:\nddpdoctor check --facts {path}", file=sys.stderr)
    return 3 if failures else 0
