"""The modules that a script imports whenever it is started: those of statements that always run before anything else can."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.script import SourceProblem
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.parsing import parse

__all__ = ["TopImport", "changes_the_search_path", "top_imports"]

_SEARCH_PATH = re.compile(
    r"\bsys\.(?:path|modules|meta_path|path_hooks)\b|\bfrom +sys +import\b[^\n]{0,200}\b(?:path|modules)\b|\baddsitedir\b"
    r"|\bsetup_root\b|\b(?:pip|conda|uv|apt)[\"', -]{1,9}(?:\w{1,40}[\"', -]{1,9}){0,4}?install\b|\bensurepip\b|\bexec[vl]\w*\("
)
"""What may make a module importable that is not importable when the script starts."""
_ENDS = ("exit", "sys.exit", "os._exit", "quit", "os.execv", "os.execvp")


@dataclass(frozen=True, slots=True)
class TopImport:
    """One import. `module` is the whole dotted name; `line` and `column` count from 1."""

    module: str
    line: int
    column: int


def changes_the_search_path(text: str) -> bool:
    """Whether a text may change where modules are found, or install them."""
    return _SEARCH_PATH.search(text) is not None


def top_imports(text: str) -> tuple[TopImport, ...] | None:
    """The imports at the top of a script, and in its main guard; None where it is not Python.

    An import that the script guards (`try`), decides on (`if`) or makes in a function is not among them, and neither is
    anything after a call that ends the script.
    """
    tree = parse(text)
    if isinstance(tree, SourceProblem):
        return None
    found: dict[str, TopImport] = {}
    for each in _imports(tree.body):
        found.setdefault(each.module, each)
    return tuple(found.values())


def _imports(body: Sequence[ast.stmt]) -> Iterator[TopImport]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield TopImport(alias.name, alias.lineno, alias.col_offset + 1)
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                yield TopImport(node.module, node.lineno, node.col_offset + 1)
        elif isinstance(node, ast.If) and _is_main_guard(node.test):
            yield from _imports(node.body)
        elif _ends(node):
            return


def _is_main_guard(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
    )


def _ends(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in _ENDS
    )
