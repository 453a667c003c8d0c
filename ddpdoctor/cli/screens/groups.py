"""Facts as groups of rows `what | value | remark`: what `ddpdoctor host` and `ddpdoctor versions` print."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.gaps import Section, Why
from ddpdoctor.facts.record import Facts
from ddpdoctor.light_dataclass import dataclass

__all__ = ["PropertyRow", "draw_groups", "draw_missing", "known"]


NARROW = 70
"""Below this many columns a remark is printed under its value."""


@dataclass(frozen=True, slots=True)
class PropertyRow:
    what: str
    value: str
    remark: str = ""


def draw_groups(groups: Iterable[tuple[str, Iterable[PropertyRow]]], *, width: int, colour: bool) -> str:
    """One table; each group begins with its title. Groups without rows are omitted."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column("what", overflow="fold", min_width=12, max_width=20)
    table.add_column("value", overflow="fold", ratio=2)
    if width >= NARROW:
        table.add_column("remark", overflow="fold", ratio=2)
    for title, rows in groups:
        listed = list(rows)
        if listed:
            table.add_row(Text(title, style="bold"))
        for row in listed:
            table.add_row(Text(f"  {row.what}"), *_cells(row, width))
    return draw_all([table, Text("")], width=width, colour=colour)


def _cells(row: PropertyRow, width: int) -> tuple[Text, ...]:
    """Value and remark side by side, or below each other in narrow terminals."""
    value, remark = Text(row.value), Text(row.remark, style="dim")
    if width >= NARROW:
        return value, remark
    return (Text("\n").join(part for part in (value, remark) if part.plain),)


def draw_missing(facts: Facts, section: str, *, width: int, colour: bool) -> str:
    """The reason why there are no facts to draw."""
    reason = next((gap.reason for gap in facts.gaps if gap.path == section), f"{section}: not collected")
    return draw_all([Text(reason)], width=width, colour=colour)


def known(section: Section, what: str, value: str | None, field: str, remark: str = "") -> PropertyRow:
    """A row for a field, or the reason why it is not known."""
    if value is not None:
        return PropertyRow(what, value, remark)
    gap = section.gap(field)
    if gap is None:
        return PropertyRow(what, "n/a")
    words = {Why.NOT_HERE: "n/a", Why.NEEDS_ROOT: "needs root", Why.UNANSWERED: "unknown"}
    return PropertyRow(what, words[gap.why], gap.reason)
