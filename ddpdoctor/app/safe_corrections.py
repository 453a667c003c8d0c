"""Which corrections of a script are safe: the rules say which may be, and the corrected text is judged again.

A correction is safe if, together with the others, it leaves Python that parses, removes its finding, brings no new one,
and uses only names that the text defines, and a process group only where the script always has one. Every other correction is
unsafe: `lint --diff` leaves it to `--unsafe`.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ddpdoctor.app.patch import applied, overlap
from ddpdoctor.findings import Edit, Finding

__all__ = ["with_safety"]

MOST_TRIED = 16
"""Most corrections of one file that are tried one by one, if they are not safe together."""
_NEEDS_GROUP = re.compile(r"\b(get_rank|get_world_size|barrier|all_reduce|broadcast|destroy_process_group)\w*\(")
_VARIABLE = re.compile(r"""environ\[["'](\w+)["']\]""")
_GUARDS = ("is_initialized(", "is_available()")


def with_safety(
    text: str, path: str, findings: Sequence[Finding], judge: Callable[[str], Iterable[Finding]]
) -> list[Finding]:
    """The findings of one file; those corrections that are not proven safe are unsafe.

    Args:
        judge: the findings in another text of the same file.
    """
    candidates = [f for f in findings if f.is_corrected_safely and all(e.file == path for e in f.edits)]
    before = Counter(f.code for f in findings)

    def is_safe(together: Sequence[Finding]) -> bool:
        new = _corrected(text, together)
        if new is None or not _names_exist(text, new) or not _starts_alike(text, together):
            return False
        after = Counter(f.code for f in judge(new))
        gone = Counter(f.code for f in together)
        return all(after[code] <= before[code] - gone[code] for code in {*after, *gone})

    kept: list[Finding] = list(candidates)
    if candidates and not is_safe(candidates):
        kept = []
        for candidate in candidates[:MOST_TRIED]:
            if is_safe([*kept, candidate]):
                kept.append(candidate)
    proven = {id(f) for f in kept}
    return [f if id(f) in proven else _unsafe(f) for f in findings]


def _unsafe(finding: Finding) -> Finding:
    if not any(edit.is_safe for edit in finding.edits):
        return finding
    return replace(finding, edits=tuple(replace(edit, is_safe=False) for edit in finding.edits))


def _corrected(text: str, findings: Sequence[Finding]) -> str | None:
    """The text with all corrections, None if they overlap or do not leave Python."""
    edits: list[Edit] = []
    for finding in findings:
        new = [edit for edit in finding.edits if edit not in edits]
        if any(overlap(edit, other) for edit in new for other in edits):
            return None
        edits += new
    changed = applied(text, edits)
    return changed if _tree(changed) is not None else None


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names_exist(old: str, new: str) -> bool:
    """Whether every name that the new text uses and the old one did not is defined somewhere in the new text."""
    trees = _tree(old), _tree(new)
    if trees[0] is None or trees[1] is None:
        return False
    return _unknown(trees[1]) <= _unknown(trees[0])


def _unknown(tree: ast.Module) -> set[str]:
    """The names that a text reads, and neither binds nor finds among the builtins."""
    bound = set(dir(builtins))
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def _starts_alike(text: str, findings: Sequence[Finding]) -> bool:
    """Whether the new code works under every start: no variable that the text does not read, no group that may be missing."""
    added = "\n".join(edit.text for finding in findings for edit in finding.edits)
    if set(_VARIABLE.findall(added)) - set(_VARIABLE.findall(text)):
        return False
    if not _NEEDS_GROUP.search(added):
        return True
    return "init_process_group(" in text and not any(guard in text for guard in _GUARDS)
