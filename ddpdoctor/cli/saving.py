"""`ddpdoctor collect`: the facts of this node as one JSON file, secrets removed, for a bug report or `--facts`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common, UsageError

__all__ = ["collect"]


def collect(
    common: Common,
    output_file: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="Write to FILE instead of standard output.")
    ] = None,
) -> int:
    """Save the facts of this node as JSON, secrets removed."""
    from ddpdoctor.cli.reading import facts_for
    from ddpdoctor.collectors import SECONDS
    from ddpdoctor.facts.codec import encode

    text = json.dumps(encode(facts_for(common, tuple(SECONDS))), indent=1, ensure_ascii=False) + "\n"
    path = output_file or common.output
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}") from None
    if not common.quiet:
        print(f"facts written to {path}; judge them anywhere: ddpdoctor check --facts {path}", file=sys.stderr)
    return 0
