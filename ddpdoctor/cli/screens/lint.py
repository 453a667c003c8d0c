"""The judged lines with a caret under every word that a finding points at, as compilers show them."""

from __future__ import annotations

import io
from functools import lru_cache

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Report

__all__ = ["draw"]

MOST_IN_SCRIPTS = 20
"""With more findings than that, their places say enough."""
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
    in_scripts = [f for f in report.findings if f.where.column is not None and _is_script(f.where.file)]
    for finding in report.findings:
        line = _line(finding, launch)
        if line is not None and finding.where.column is not None:
            _show(console, finding, line, width)
    for finding in in_scripts if len(in_scripts) <= MOST_IN_SCRIPTS else ():
        _show_in_script(console, finding, width)
    for name in dict.fromkeys(layer.launcher.value for line in launch.lines for layer in line.unread):
        console.print(Text(f"{name}: its own options are not judged, only the program that it starts"))
    return out.getvalue()


def _line(finding: Finding, launch: Launch) -> LaunchLine | None:
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


def _word(finding: Finding, line: LaunchLine) -> Word | None:
    """The word of the line that the finding points at."""
    return next((w for w in line.argv if line.place(w.start) == (finding.where.line, finding.where.column)), None)


def _is_script(path: str | None) -> bool:
    return path is not None and path.endswith((".py", ".ipynb"))


def _show_in_script(console: Console, finding: Finding, width: int) -> None:
    """The line of a script, or of a notebook's cell, without its indent."""
    where = finding.where
    lines = _cell(where.file or "", finding.text)
    if where.line is None or where.column is None or where.line > len(lines):
        return
    text = lines[where.line - 1]
    seen = finding.evidence[0].seen if finding.evidence else ""
    length = len(seen) if text.startswith(seen, where.column - 1) else len(text[where.column - 1 :].split(" ")[0])
    indent = len(text) - len(text.lstrip())
    _show_part(console, finding, text[indent:], max(0, where.column - 1 - indent), max(1, length), width)


@lru_cache(maxsize=8)
def _cell(path: str, message: str) -> list[str]:
    from ddpdoctor.collectors.script import read

    try:
        text = read(path)
    except OSError:  # removed since it was judged
        return []
    lines = text.source.text.split("\n")
    cell = next((c for c in text.cells if message.startswith(f"cell {c.number}: ")), None)
    return lines if cell is None else lines[cell.first_line - 1 : cell.last_line]


def _show(console: Console, finding: Finding, line: LaunchLine, width: int) -> None:
    at = _word(finding, line)
    row = (finding.where.line or 1) - line.first_line
    column = (finding.where.column or 1) - 1 - (line.first_column - 1 if row == 0 else 0)
    if at is not None:
        before = line.source[: at.start]
        row, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    text = line.source.split("\n")[row]
    length = max(1, (at.end - at.start) if at is not None else len(text[column:].split(" ")[0]))
    _show_part(console, finding, text, column, length, width)


def _show_part(console: Console, finding: Finding, text: str, column: int, length: int, width: int) -> None:
    """The part of a text around a column, with carets below it: a tab takes one cell, a wide character two."""
    text = text.replace("\t", " ")
    length = max(1, cell_len(text[column : column + length]))
    most = max(0, width - 20 - min(length, width // 2))
    start = max(0, column - most)
    while cell_len(text[start:column]) > most:
        start += 1
    before = cell_len(text[start:column])
    label = f" {finding.code}"
    carets = "^" * max(1, min(length, width - before - len(label)))
    console.print(Text(text[start : start + width]), no_wrap=True, crop=True)
    console.print(Text(" " * before + carets + label, style=COLOURS[finding.worst.value]), no_wrap=True, crop=True)
