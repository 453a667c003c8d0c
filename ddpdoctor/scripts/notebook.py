"""The Python of a notebook: its code cells as one source, without what only IPython understands."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from typing import Any

from ddpdoctor.facts.script import SourceProblem
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.parsing import parse

__all__ = ["Cell", "Notebook", "NotebookError", "cells_of", "read_notebook", "readable"]

_RUNS_PYTHON = {"capture", "time", "timeit", "prun", "python", "python3"}
"""Cell magics whose body is Python in the same namespace."""
_MAGIC = re.compile(r"(\s*)(?:[%!?]|[\w.]+\s*=\s*[%!](?!=)|[\w.%]+\?{1,2}\s*$)")
_AUTOMAGIC = re.compile(r"(\s*)(?:ls|cd|mkdir|rmdir|cp|mv|rm|cat|pip3?|conda)\s+[\w./~$'\"-]")
"""Commands that IPython accepts without a percent sign, if the line is not Python."""
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")


class NotebookError(ValueError):
    """The file is not a notebook, or not a readable one; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One code cell: its number among all cells from 1, and its first and last line in the whole source."""

    number: int
    first_line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code of all cells as one source, and the position of each cell."""

    text: str
    cells: tuple[Cell, ...]


def read_notebook(text: str) -> Notebook:
    """The Python of a notebook; a notebook in another language has no cells.

    Raises:
        NotebookError: it is not JSON, or not the JSON of a notebook.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"is no notebook: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("cells", data.get("worksheets")), list):
        raise NotebookError("is no notebook: it has no cells")
    lines: list[str] = []
    cells = []
    for number, (cell, key) in cells_of(data).items() if _is_python(data) else ():
        source = cell[key]
        pieces = source if isinstance(source, list) else [source]
        own = _python("".join(piece for piece in pieces if isinstance(piece, str)))
        cells.append(Cell(number, len(lines) + 1, len(lines) + len(own)))
        lines += own
    return Notebook("".join(f"{line}\n" for line in lines), tuple(cells))


def readable(notebook: Notebook) -> tuple[str, SourceProblem | None]:
    """The source, with blank lines for the cells that are not Python, and the problem of the first of these."""
    if not isinstance(parse(notebook.text), SourceProblem):
        return notebook.text, None
    lines, first = notebook.text.split("\n"), None
    for cell in notebook.cells:
        own = slice(cell.first_line - 1, cell.last_line)
        parsed = parse("\n".join(lines[own]))
        if isinstance(parsed, SourceProblem):
            line = None if parsed.line is None else parsed.line + cell.first_line - 1
            first = first or SourceProblem(parsed.message, line or cell.first_line, parsed.column)
            lines[own] = [""] * len(lines[own])
    return "\n".join(lines), first


def cells_of(data: dict[str, Any]) -> dict[int, tuple[dict[str, Any], str]]:
    """The code cells of a notebook by their number among all cells, each with the key of its source."""
    cells = data.get("cells")
    if cells is None:  # notebooks before format 4
        sheets = [sheet.get("cells") for sheet in data["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets if isinstance(sheet, list) for cell in sheet]
    return {
        number: (cell, key)
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
        for key in ("source", "input")
        if key in cell
    }


def _is_python(data: dict[str, Any]) -> bool:
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        return True
    names = []
    for key, field in (("kernelspec", "language"), ("language_info", "name")):
        table = metadata.get(key)
        if isinstance(table, dict) and isinstance(table.get(field), str):
            names.append(table[field].lower())
    return not names or any(name in ("python", "ipython") for name in names)


def _python(source: str) -> list[str]:
    """The lines of a cell as Python, with magics and shell commands replaced by `pass`: their number stays the same."""
    lines = source.replace("\r\n", "\n").split("\n")
    magic = next((match for line in lines if line.strip() for match in [_CELL_MAGIC.match(line)]), None)
    if magic is not None and magic[1] not in _RUNS_PYTHON:
        return ["" for _ in lines]
    row = 0
    while row < len(lines):
        match = _MAGIC.match(lines[row]) or _automagic(lines[row])
        if match is not None and not _continues("\n".join(lines[:row])):
            command, lines[row] = lines[row], f"{match[1]}pass"
            while command.rstrip().endswith("\\") and row + 1 < len(lines):
                row += 1
                command, lines[row] = lines[row], ""
        row += 1
    return lines


def _automagic(line: str) -> re.Match[str] | None:
    match = _AUTOMAGIC.match(line)
    try:
        return None if match is None or ast.parse(line.strip()) else match
    except (SyntaxError, ValueError):
        return match


def _continues(text: str) -> bool:
    """Whether the next line continues a bracket or a string, so that it is not a magic."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text).readline):
            pass
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except SyntaxError:
        return False
    return False
