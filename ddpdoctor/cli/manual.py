"""`ddpdoctor explain CODE` and `ddpdoctor rules`: the manual, from the rules' own docstrings."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common, UsageError

__all__ = ["explain", "rules"]


def explain(common: Common, code: Annotated[str, typer.Argument(metavar="CODE-or-name")]) -> int:
    """The manual page of one finding."""
    from ddpdoctor.rules import load

    wanted = code.strip()
    found = [r for r in load() if wanted.upper() == r.code or wanted.lower() == r.name]
    if not found:
        raise UsageError(f"{code!r:.80} is no code and no name; `ddpdoctor rules` lists them")
    each = found[0]
    sys.stdout.write(f"{each.code} {each.name} ({each.severity.value})\n\n{each.doc}")
    return 0


def rules(common: Common) -> int:
    """The list of what ddpdoctor recognises."""
    from ddpdoctor.rules import load

    for each in load():
        sys.stdout.write(f"{each.code:<11} {each.severity.value:<8} {each.name:<36} {each.title}\n")
    return 0
