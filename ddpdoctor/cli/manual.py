"""`ddpdoctor explain CODE` and `ddpdoctor rules`: the manual, from the rules' own docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ddpdoctor.app.request import Common, Format, UsageError
from ddpdoctor.rules import AREAS, Rule, load

__all__ = ["explain", "rules"]

FORMATS = (Format.table, Format.markdown, Format.json)


def explain(common: Common, code: Annotated[str, typer.Argument(metavar="CODE-or-name")]) -> int:
    """The manual page of one finding."""
    from ddpdoctor.render import manual

    found = _find(code)
    return _show(common, lambda form, width: manual.page(found, form, width))


def rules(common: Common) -> int:
    """The list of what ddpdoctor recognises."""
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.render import manual

    found = rules_for(common, tuple(AREAS.values()))
    return _show(common, lambda form, width: manual.listed(found, form, width))


def _show(common: Common, write: Callable[[str, int], str]) -> int:
    from ddpdoctor.cli.output import WIDEST, emit_text, width

    if common.format not in FORMATS:
        allowed = ", ".join(form.value for form in FORMATS)
        raise UsageError(f"--format {common.format.value} is for reports; the manual is written as {allowed}")
    text = None if common.format is Format.table else write(common.format.value, WIDEST)
    return 0 if emit_text(write("table", width()), text, common) else 3


def _find(wanted: str) -> Rule:
    known = load()
    word = wanted.strip().lower().replace("_", "-")
    for each in known:
        if word in (each.code.lower(), each.name):
            return each
    from difflib import get_close_matches

    near = get_close_matches(word, [name for r in known for name in (r.code.lower(), r.name)], 3)
    shown = [name.upper() if name[-1:].isdigit() and "-" not in name else name for name in near]
    hint = f"did you mean {' or '.join(shown)}?" if shown else "`ddpdoctor rules` lists them"
    raise UsageError(f"{wanted!r:.80} is no code and no name; {hint}")
