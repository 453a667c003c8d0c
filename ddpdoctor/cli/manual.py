"""`ddpdoctor explain CODE` and `ddpdoctor rules`: the manual, from the rules' own docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ddpdoctor.app.request import Format, Request, UsageError
from ddpdoctor.rules import AREAS

__all__ = ["explain", "rules"]

FORMATS = (Format.table, Format.markdown, Format.json)


def explain(request: Request, code: Annotated[str, typer.Argument(metavar="CODE-or-name")]) -> int:
    """The manual page of one finding."""
    from ddpdoctor.app.rule_selection import rule_named
    from ddpdoctor.render import manual

    found = rule_named(code)
    return _show(request, lambda form, width: manual.page(found, form, width))


def rules(request: Request) -> int:
    """The list of what ddpdoctor recognises."""
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.render import manual

    found = rules_for(request, tuple(AREAS.values()))
    return _show(request, lambda form, width: manual.listed(found, form, width))


def _show(request: Request, write: Callable[[str, int], str]) -> int:
    from ddpdoctor.cli.output import WIDEST, emit_text, width

    if request.format not in FORMATS:
        allowed = ", ".join(form.value for form in FORMATS)
        raise UsageError(f"--format {request.format.value} is for reports; the manual is written as {allowed}")
    text = None if request.format is Format.table else write(request.format.value, WIDEST)
    return 0 if emit_text(write("table", width()), text, request) else 3
