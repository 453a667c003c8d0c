"""Statements as whole lines of a script: read, re-indented, deleted, moved."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ddpdoctor.findings import Edit
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["deleted_lines", "inserted_lines", "lines_of", "reindented", "replaced_lines"]


def lines_of(module: Module, statements: Sequence[ast.stmt]) -> list[str]:
    """The lines of consecutive statements; none if they share a line or contain a multi-line string."""
    first, last = statements[0], statements[-1]
    shares = any(
        module.lines[s.lineno - 1].encode()[: s.col_offset].strip()
        or module.lines[(s.end_lineno or 0) - 1].encode()[s.end_col_offset or 0 :].strip()[:1] not in (b"", b"#")
        for s in statements
    )
    long = any(
        isinstance(n, (ast.Constant, ast.JoinedStr)) and n.lineno != n.end_lineno
        for s in statements
        for n in ast.walk(s)
    )
    defines = any(isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for s in statements)
    if shares or long or defines:
        return []
    rows = module.lines[first.lineno - 1 : last.end_lineno]
    return [row.rstrip("\r\n") + "\n" for row in rows]


def reindented(lines: Sequence[str], indent: str) -> list[str]:
    """The lines re-indented, so that the first one gets this indentation."""
    old = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return [f"{indent}{row[old:]}" if row.strip() else row for row in lines]


def deleted_lines(module: Module, statements: Sequence[ast.stmt]) -> Edit:
    """Delete consecutive statements."""
    return replaced_lines(module, statements, ())[0]


def inserted_lines(module: Module, line: int, lines: Sequence[str]) -> Edit:
    """Insert lines before the line with this number."""
    return Edit(module.path, line, 1, line, 1, "".join(lines))


def replaced_lines(module: Module, statements: Sequence[ast.stmt], lines: Sequence[str]) -> tuple[Edit, ...]:
    """Replace consecutive statements with these lines."""
    first, last = statements[0].lineno, statements[-1].end_lineno or 0
    return (Edit(module.path, first, 1, last + 1, 1, "".join(lines)),)
