"""How a rule points at code: the place, its text, and the edits that correct it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace as with_fields

from ddpdoctor.findings import Edit, Evidence, Finding, Severity, Where
from ddpdoctor.scripts.syntax.module import Module

__all__ = [
    "after",
    "before",
    "code",
    "delete",
    "dist_of",
    "imported",
    "indent_of",
    "is_elif",
    "line_after",
    "moved",
    "point",
    "replace",
    "safe",
    "under",
    "waited",
    "with_keyword",
    "without_argument",
]


def column(module: Module, line: int, offset: int) -> int:
    """The column, from 1 in characters, of a byte offset in a line."""
    text = module.lines[line - 1] if line <= len(module.lines) else ""
    return len(text.encode()[:offset].decode("utf-8", "replace")) + 1


def code(module: Module, node: ast.AST, limit: int = 70) -> str:
    """The text of a node on one line, shortened."""
    text = " ".join(_source(module, node).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _source(module: Module, node: ast.AST) -> str:
    line, end = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    first, last = column(module, line, node.col_offset) - 1, column(module, end, node.end_col_offset) - 1  # type: ignore[attr-defined]
    rows = module.lines[line - 1 : end]
    if not rows:
        return ""
    rows[-1] = rows[-1][:last]
    rows[0] = rows[0][first:]
    return "".join(rows)


def point(
    module: Module,
    node: ast.AST,
    message: str,
    expected: str,
    *,
    label: str,
    fix: str = "",
    edits: tuple[Edit, ...] = (),
    severity: Severity | None = None,
) -> Finding:
    """A finding at a node: `message` is the headline, `label` the caret's text, `expected` what should be there."""
    line = node.lineno  # type: ignore[attr-defined]
    start = column(module, line, node.col_offset)  # type: ignore[attr-defined]
    seen = code(module, node) if not isinstance(node, ast.stmt) else " ".join(module.lines[line - 1].split())[:70]
    return Finding(
        message,
        evidence=(Evidence(f"script.{module.path}:{line}", seen, expected),),
        fix=fix,
        where=Where(file=module.path, line=line, column=start),
        severity=severity,
        edits=edits,
        label=label,
    )


def replace(module: Module, node: ast.AST, text: str) -> Edit:
    """Replace the text of a node."""
    line, end = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    start = column(module, line, node.col_offset)  # type: ignore[attr-defined]
    return Edit(module.path, line, start, end, column(module, end, node.end_col_offset or 0), text)  # type: ignore[attr-defined]


def delete(module: Module, statement: ast.stmt) -> Edit:
    """Delete a statement's lines; `pass` replaces the only statement of a block."""
    parent = module.index.parents.get(statement)
    alone = any(body == [statement] for body in (getattr(parent, "body", None), getattr(parent, "orelse", None)))
    if alone and not isinstance(parent, ast.Module):
        return replace(module, statement, "pass")
    return Edit(module.path, statement.lineno, 1, (statement.end_lineno or statement.lineno) + 1, 1, "")


def safe(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Declare that these edits correct the whole mistake wherever it is, and break no start of the script that worked."""
    return tuple(with_fields(edit, is_safe=True) for edit in edits)


def before(module: Module, statement: ast.stmt, text: str) -> Edit:
    """Insert a line before a statement, with its indentation."""
    return Edit(module.path, statement.lineno, 1, statement.lineno, 1, f"{indent_of(module, statement)}{text}\n")


def after(module: Module, statement: ast.stmt, text: str) -> Edit:
    """Insert a line after a statement, with its indentation."""
    return line_after(module, statement, text, statement)


def line_after(module: Module, statement: ast.stmt, text: str, like: ast.stmt) -> Edit:
    """Insert a line after a statement, with the indentation of another one."""
    line = (statement.end_lineno or statement.lineno) + 1
    if line > len(module.lines) and module.lines and not module.lines[-1].endswith("\n"):
        last = len(module.lines)
        at = len(module.lines[-1]) + 1
        return Edit(module.path, last, at, last, at, f"\n{indent_of(module, like)}{text}\n")
    return Edit(module.path, line, 1, line, 1, f"{indent_of(module, like)}{text}\n")


def waited(module: Module, name: str, edit: Edit, statement: ast.stmt) -> tuple[Edit, ...]:
    """Insert `name.wait()` and delete the later one in the same block: a request may be waited for only once."""
    parent = module.index.parents[statement]
    block = next((b for n in ("body", "orelse", "finalbody") if statement in (b := getattr(parent, n, []))), [])
    later = [s for s in block[block.index(statement) + 1 :] if isinstance(s, ast.Expr)] if block else []
    old = next((s for s in later if ast.unparse(s) == f"{name}.wait()"), None)
    return (edit,) if old is None else (edit, delete(module, old))


def indent_of(module: Module, statement: ast.stmt) -> str:
    """The indentation of a statement's first line."""
    text = module.lines[statement.lineno - 1]
    return text[: len(text) - len(text.lstrip())] if text.strip() else ""


def under(module: Module, statement: ast.stmt, head: str) -> tuple[Edit, ...]:
    """Put a one-line statement under a new condition."""
    if statement.lineno != statement.end_lineno or not module.lines[statement.lineno - 1].strip().startswith(
        code(module, statement, 4000)
    ):
        return ()
    indent = indent_of(module, statement)
    return (replace(module, statement, f"{head}\n{indent}    {code(module, statement, 4000)}"),)


def moved(module: Module, statement: ast.stmt, there: ast.stmt, *, follows: bool = False) -> tuple[Edit, ...]:
    """Move a one-line statement before another one of its block, or after it."""
    index = module.index
    if statement.lineno != statement.end_lineno or index.parents.get(statement) is not index.parents.get(there):
        return ()
    text = module.lines[statement.lineno - 1].strip()
    return (delete(module, statement), after(module, there, text) if follows else before(module, there, text))


def is_elif(module: Module, branch: ast.If) -> bool:
    """Whether a branch is the `elif` of another."""
    return module.lines[branch.lineno - 1].lstrip().startswith("elif")


def imported(module: Module, name: str, text: str) -> tuple[Edit, ...]:
    """Add an import before the first import of the file, unless the name is already known."""
    if name in module.index.scopes[module.tree].names:
        return ()
    imports = [s for s in module.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    first = next((s for s in imports if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")), None)
    return (before(module, first, text),) if first is not None else ()


def dist_of(module: Module) -> str:
    """How the file calls torch.distributed: `dist`."""
    for name, calls in module.call_index.by_short_name.items():
        if name.startswith("dist.") and name.count(".") == 1 and isinstance(calls[0].func, ast.Attribute):
            return code(module, calls[0].func.value)
    return "torch.distributed"


def with_keyword(module: Module, call: ast.Call, text: str) -> Edit:
    """Add an argument at the end of a call."""
    given = [*call.args, *(k.value for k in call.keywords)]
    end = call.end_lineno or call.lineno
    at = column(module, end, call.end_col_offset or 0) - 1
    if not given:
        return Edit(module.path, end, at, end, at, text)
    last = max(given, key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0))
    line = last.end_lineno or last.lineno
    stop = column(module, line, last.end_col_offset or 0)
    return Edit(module.path, line, stop, line, stop, f", {text}")


def without_argument(module: Module, call: ast.Call, *values: ast.expr) -> tuple[Edit, ...]:
    """Remove arguments of a call, given by their values."""
    given: list[ast.AST] = sorted(
        [*call.args, *call.keywords],
        key=lambda n: (n.lineno, n.col_offset),  # type: ignore[attr-defined]
    )
    spans = [replace(module, node, "") for node in given]
    goes = [node in values or (isinstance(node, ast.keyword) and node.value in values) for node in given]
    if all(goes):
        first, last = spans[0], spans[-1]
        return (Edit(module.path, first.line, first.column, last.end_line, last.end_column, ""),)
    edits = []
    for at, span in enumerate(spans):
        if goes[at] and all(goes[:at]):
            following = spans[at + 1]
            edits.append(Edit(module.path, span.line, span.column, following.line, following.column, ""))
        elif goes[at]:
            previous = spans[at - 1]
            edits.append(Edit(module.path, previous.end_line, previous.end_column, span.end_line, span.end_column, ""))
    return tuple(edits)
