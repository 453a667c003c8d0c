"""The judged lines with a caret under every word that a finding points at, as compilers show them."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from ddpdoctor.facts.launch import Launch, Line, Word
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report

__all__ = ["draw"]

COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def draw(facts: Facts, report: Report, *, width: int, colour: bool) -> str:
    """One block a finding: the part of its line around the word, carets below it, the code; and what was not judged."""
    launch = facts.launch
    if launch is None:
        return ""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False
    )
    for finding in report.findings:
        line = _line(finding, launch)
        if line is not None and finding.where.column is not None:
            _show(console, finding, line, width)
    for name in dict.fromkeys(layer.launcher.value for line in launch.lines for layer in line.unread):
        console.print(Text(f"{name}: its own options are not judged, only the program that it starts"))
    return out.getvalue()


def _line(finding: Finding, launch: Launch) -> Line | None:
    where = finding.where
    for line in launch.lines:
        rows = line.source.count("\n")
        inside = where.line is not None and line.first_line <= where.line <= line.first_line + rows
        if (
            line.node == where.node
            and line.file == where.file
            and (_word(finding, line) or (inside and not line.marks))
        ):
            return line
    return None


def _word(finding: Finding, line: Line) -> Word | None:
    """The word of the line that the finding points at."""
    return next((w for w in line.argv if line.place(w.start) == (finding.where.line, finding.where.column)), None)


def _show(console: Console, finding: Finding, line: Line, width: int) -> None:
    at = _word(finding, line)
    row = (finding.where.line or 1) - line.first_line
    column = (finding.where.column or 1) - 1 - (line.first_column - 1 if row == 0 else 0)
    if at is not None:
        before = line.source[: at.start]
        row, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    text = line.source.split("\n")[row]
    length = max(1, (at.end - at.start) if at is not None else len(text[column:].split(" ")[0]))
    start = max(0, column - max(0, width - 20 - min(length, width // 2)))
    shown = text[start : start + width]
    label = f" {finding.code}"
    carets = "^" * max(1, min(length, width - (column - start) - len(label)))
    console.print(Text(shown), no_wrap=True, crop=True)
    console.print(
        Text(" " * (column - start) + carets + label, style=COLOURS[finding.worst.value]), no_wrap=True, crop=True
    )
