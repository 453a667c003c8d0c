"""`ddpdoctor explain WORD` and `ddpdoctor rules`: the manual, from the rules' own docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ddpdoctor.app.request import Format, Request, UsageError
from ddpdoctor.rules import AREAS

__all__ = ["explain", "rules"]

FORMATS = (Format.table, Format.markdown, Format.json)
MOST_MATCHES = 20


def explain(
    request: Request,
    words: Annotated[
        list[str], typer.Argument(metavar="WORD…", help="A code, a name, words, or the text of an error.")
    ],
) -> int:
    """The manual page of a rule; or a list of rules if several match the words or the text of an error."""
    from ddpdoctor.app.rule_search import search
    from ddpdoctor.render import manual

    matched = search(" ".join(words))
    if len(matched) == 1:
        return _show(request, lambda form, width: manual.page(matched[0], form, width))
    return _show(request, lambda form, width: manual.matches(matched, form, width, MOST_MATCHES))


def rules(request: Request) -> int:
    """List all rules."""
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.render import manual

    found = rules_for(request, tuple(AREAS.values()))
    return _show(request, lambda form, width: manual.listed(found, form, width))


def _show(request: Request, write: Callable[[str, int], str]) -> int:
    from ddpdoctor.cli.output import WIDEST, emit_text, width

    if request.format not in FORMATS:
        allowed = ", ".join(form.value for form in FORMATS)
        raise UsageError(f"--format {request.format.value!r} is for reports; expected {allowed}")
    text = None if request.format is Format.table else write(request.format.value, WIDEST)
    return 0 if emit_text(write("table", width()), text, request) else 3
