"""The source lines of a finding with a caret under the place, as compilers show them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from ddpdoctor.examined import Excerpt
from ddpdoctor.findings import Finding
from ddpdoctor.render.cells import cut
from ddpdoctor.render.plain import printable

__all__ = ["COLOURS", "excerpt_lines"]

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}
_MOST_BEFORE_CARET = 0.7
"""The share of the width that may be left of a caret; longer lines are cut on the left."""


def excerpt_lines(finding: Finding, width: int) -> Iterator[Text]:
    """The numbered lines of the excerpt, and the carets with the label; empty without an excerpt."""
    excerpt = finding.excerpt
    if excerpt is None:
        return
    digits = len(str(excerpt.first + len(excerpt.lines) - 1)) if excerpt.is_numbered else 0
    gutter = " " * (digits + 2)
    room = max(20, width - len(gutter) - 2)
    lines = [_cells(line) for line in excerpt.lines]
    pointed = lines[excerpt.line - excerpt.first]
    start = _start(pointed, excerpt, room)
    indent = min((_indent(line) for line in lines if line.strip()), default=0) if start == 0 else start
    for number, line in enumerate(lines, start=excerpt.first):
        shown = f"…{line[start + 1 :]}" if start and len(line) > start else line[indent:]
        left = f" {number:>{digits}} | " if excerpt.is_numbered else "  | "
        yield Text(left, style="dim").append(cut(shown, room), style="not dim")
        if number == excerpt.line and excerpt.length:
            yield _carets(finding, excerpt, pointed, indent, gutter, room)


def _carets(finding: Finding, excerpt: Excerpt, line: str, indent: int, gutter: str, room: int) -> Text:
    before = cell_len(line[indent : excerpt.column - 1])
    length = max(1, cell_len(line[max(indent, excerpt.column - 1) :][: excerpt.length]))
    carets = "^" * max(1, min(length, room - before))
    text = Text(f"{gutter}| ", style="dim") if excerpt.is_numbered else Text("  | ", style="dim")
    text.append(" " * before).append(carets, style=f"not dim {COLOURS[finding.worst.value]}")
    if finding.label and before + len(carets) + 1 + cell_len(finding.label) <= room:
        text.append(f" {printable(finding.label)}", style=f"not dim {COLOURS[finding.worst.value]}")
    return text


def _cells(line: str) -> str:
    """The line with each tab as one space, so that columns of the source are kept."""
    return printable(line).replace("\t", " ") if len(printable(line)) == len(line) else _one_cell_each(line)


def _one_cell_each(line: str) -> str:
    """The line with exactly one character for each character: an escape would move the caret."""
    return "".join(c if printable(c) == c and c != "\t" else " " for c in line)


def _start(line: str, excerpt: Excerpt, room: int) -> int:
    """Where a long line is cut on the left so that the caret is visible."""
    before = excerpt.column - 1 - _indent(line)
    most = int(room * _MOST_BEFORE_CARET)
    return 0 if before + excerpt.length <= room or before <= most else excerpt.column - 1 - most


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
