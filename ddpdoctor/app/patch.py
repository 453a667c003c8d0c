"""`lint --diff`: the corrections that findings propose, as one patch for `git apply` or `patch -p1`; nothing is written."""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddpdoctor.app.public_patch import public_lines
from ddpdoctor.collectors.script import read
from ddpdoctor.findings import Edit, Finding
from ddpdoctor.scripts.notebook import Cell, cells_of
from ddpdoctor.scripts.source_text import encoding_of
from ddpdoctor.wording import counted

__all__ = ["applied", "overlap", "patch"]

_ENDS = re.compile(r"\r\n|\r|\n")
_LAYOUTS = [(indent, plain) for indent in (1, 2, 4, None, 0, 3) for plain in (False, True)]
"""How a notebook may be formatted: its indent, and whether it is ASCII only."""


def patch(
    findings: Sequence[Finding], *, unsafe: bool = False, is_public: bool = False
) -> tuple[bytes, int, tuple[str, ...]]:
    """The patch, how many findings it corrects, and the files that it could not be made for, with the reason.

    Each file's part is in the encoding and with the line ends of the file.

    Args:
        unsafe: print the corrections that are not safe, each named above the part of its file, instead of the safe ones.
        is_public: leave out lines with secrets.
    """
    by_file: dict[str, list[Finding]] = {}
    for finding in (each for each in findings if each.edits and each.is_corrected_safely is not unsafe):
        for path in {edit.file for edit in finding.edits}:
            by_file.setdefault(path, []).append(finding)
    parts, count, failures = [], 0, []
    for path, found in sorted(by_file.items()):
        try:
            made = _notebook(path, found) if path.endswith(".ipynb") else _script(path, found)
            old, new, encoding, corrected = made
        except (OSError, ValueError) as error:
            failures.append(f"{path}: no patch: {error}")
            continue
        lines, left_out = list(_unified(_name(path), old, new)), 0
        if is_public:
            lines, left_out = public_lines(lines, (old, new))
        if left_out:
            failures.append(
                f"{path}: {counted(left_out, 'part')} of the patch left out: lines with secrets; a terminal shows all"
            )
        marks = [f"# unsafe: {each.code} {_name(path)}:{each.where.line}\n" for each in corrected if unsafe and lines]
        parts.append("".join([*marks, *lines]).encode(encoding))
        count += len(corrected) if lines else 0
    return b"".join(parts), count, tuple(failures)


def _script(path: str, findings: Sequence[Finding]) -> tuple[str, str, str, list[Finding]]:
    with open(path, "rb") as file:
        data = file.read()
    encoding = encoding_of(data)
    old = data.decode(encoding)
    end = _ENDS.search(old)
    edits, corrected = _chosen(path, old, findings)
    return old, applied(old, edits, end[0] if end else "\n"), encoding, corrected


def _chosen(path: str, text: str, findings: Iterable[Finding]) -> tuple[list[Edit], list[Finding]]:
    """The edits of as many findings as are compatible and leave valid Python, and these findings."""
    kept: list[Edit] = []
    corrected: list[Finding] = []
    is_python = _parses(text)
    for finding in findings:
        edits = [edit for edit in finding.edits if edit.file == path and edit not in kept]
        if any(overlap(edit, other) for edit in edits for other in kept):
            continue
        if is_python and not _parses(applied(text, [*kept, *edits])):
            continue
        kept += edits
        corrected.append(finding)
    return kept, corrected


def _parses(text: str) -> bool:
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def overlap(one: Edit, other: Edit) -> bool:
    """Whether two edits change the same text."""
    first, second = sorted([_span(one), _span(other)])
    return second[0] < first[1] or (first == second and first[0] != first[1])


def _span(edit: Edit) -> tuple[tuple[int, int], tuple[int, int]]:
    return (edit.line, edit.column), (edit.end_line, edit.end_column)


def applied(text: str, edits: Sequence[Edit], end: str = "\n") -> str:
    """A text with edits that do not overlap; their newlines become `end`."""
    starts = [0, *(match.end() for match in _ENDS.finditer(text))]
    mark = int(text.startswith("\ufeff"))

    def at(line: int, column: int) -> int:
        if line > len(starts):
            return len(text)
        return starts[line - 1] + column - 1 + (mark if line == 1 else 0)

    out = text
    for edit in sorted(edits, key=_span, reverse=True):
        new = edit.text.replace("\n", end)
        start, stop = at(edit.line, edit.column), at(edit.end_line, edit.end_column)
        if start == len(text) and text and not text.endswith(("\n", "\r")) and not new.startswith(("\n", "\r")):
            new = end + new
        out = out[:start] + new + out[stop:]
    return out


def _notebook(path: str, findings: Sequence[Finding]) -> tuple[str, str, str, list[Finding]]:
    """A notebook is patched as JSON, if its formatting can be reproduced exactly."""
    text = read(path)
    assert text.raw is not None
    data = json.loads(text.raw)
    layout = next((one for one in _LAYOUTS if _dumped(data, *one) == text.raw.rstrip("\n")), None)
    if layout is None:
        raise ValueError("it is not formatted as Jupyter writes it")
    inside = [f for f in findings if all(_cell(edit, text.cells) is not None for edit in f.edits if edit.file == path)]
    edits, corrected = _chosen(path, text.source.text, inside)
    for number, (holder, key) in cells_of(data).items():
        own = [_moved(edit, cell) for edit in edits if (cell := _cell(edit, text.cells)) and cell.number == number]
        source = holder[key]
        new = applied(source if isinstance(source, str) else "".join(source), own)
        if own:
            holder[key] = new if isinstance(source, str) else new.splitlines(keepends=True)
    tail = text.raw[len(text.raw.rstrip("\n")) :]
    return text.raw, _dumped(data, *layout) + tail, "utf-8", corrected


def _dumped(data: Any, indent: int | None, plain: bool) -> str:
    return json.dumps(data, indent=indent, ensure_ascii=plain)


def _cell(edit: Edit, cells: tuple[Cell, ...]) -> Cell | None:
    """The only cell that an edit concerns."""
    return next((c for c in cells if c.first_line <= edit.line and edit.end_line <= c.last_line), None)


def _moved(edit: Edit, cell: Cell) -> Edit:
    by = 1 - cell.first_line
    return Edit(edit.file, edit.line + by, edit.column, edit.end_line + by, edit.end_column, edit.text)


def _name(path: str) -> str:
    """The path as `git apply`, `patch -p1` and `patch -p0` accept it: relative if it is below the working directory."""
    below = os.path.relpath(path)
    return path if below.startswith("..") else f"./{below}"


def _unified(name: str, old: str, new: str) -> Iterator[str]:
    for line in difflib.unified_diff(_lines(old), _lines(new), name, name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Split at newlines only, as patch does."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
