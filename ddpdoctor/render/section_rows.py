"""The sections of a preflight as rows: failed ones first, the others in few words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ddpdoctor.examined import CheckedSection, SectionState
from ddpdoctor.findings import Report
from ddpdoctor.render.plain import printable

__all__ = ["section_rows"]

MARKS = {
    SectionState.OK: ("✓", "green"),
    SectionState.NOTE: ("✓", "green"),
    SectionState.WARNING: ("!", "bold yellow"),
    SectionState.ERROR: ("✗", "bold red"),
    SectionState.SKIPPED: ("–", "dim"),
    SectionState.UNKNOWN: ("?", "magenta"),
}
FAILED = (SectionState.ERROR, SectionState.WARNING, SectionState.UNKNOWN)
WELL = (SectionState.OK, SectionState.NOTE)


def section_rows(report: Report, width: int, *, is_verbose: bool) -> Iterator[Text]:
    """One row per failed section; the others in full if none failed, otherwise together on few lines."""
    failed = [each for each in report.sections if each.state in FAILED]
    failed.sort(key=lambda section: FAILED.index(section.state))
    others = [each for each in report.sections if each.state not in FAILED]
    longest = max((cell_len(each.title) for each in report.sections), default=0)
    in_full = others if is_verbose or not failed else []
    for section in (*failed, *in_full):
        yield from _row(section, longest, width)
    if not in_full and others:
        yield from _together(others, width)


def _row(section: CheckedSection, longest: int, width: int) -> Iterator[Text]:
    mark, style = MARKS[section.state]
    head = Text(f"{mark} ", style=style).append(f"{section.title:<{longest}}  ", style="not bold default")
    room = max(20, width - longest - 4 - (len(section.code) + 2 if section.code else 0))
    lines = _wrapped(printable(section.text), room)
    for at, line in enumerate(lines):
        row = (head if at == 0 else Text(" " * (longest + 4))).append(line, style="not bold default")
        yield row.append(f"  {printable(section.code)}", style="dim") if section.code and at == len(lines) - 1 else row


def _wrapped(text: str, room: int) -> Sequence[str]:
    import textwrap

    return textwrap.wrap(text, room, break_on_hyphens=False) or [""]


def _together(sections: Sequence[CheckedSection], width: int) -> Iterator[Text]:
    """`✓ host  ✓ versions  – GPUs: none (CPU only)`, on as many lines as needed."""
    line = Text()
    for section in (*(s for s in sections if s.state in WELL), *(s for s in sections if s.state not in WELL)):
        mark, style = MARKS[section.state]
        says = "" if section.state in WELL else f": {printable(section.text)}"
        piece = Text(f"{mark} ", style=style).append(f"{section.title}{says}", style="not bold default")
        if line and cell_len(line.plain) + 2 + cell_len(piece.plain) > width:
            yield line
            line = Text()
        line = line.append("  ").append_text(piece) if line else piece
    if line:
        yield line
