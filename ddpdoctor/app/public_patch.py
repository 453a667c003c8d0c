"""The patch of `lint --diff` for a pipe or a file: secrets of the lines around a correction are left out of it.

Lines of context may be dropped from both ends of a hunk, and it still applies. A hunk that changes a line with a secret, or has
one between two changes, is left out whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ddpdoctor.privacy.reports import secrets_in, without_values

__all__ = ["public_lines"]

HEAD = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)", re.DOTALL)


def public_lines(lines: Iterable[str], sources: Iterable[str]) -> tuple[list[str], int]:
    """The lines of one file's unified diff without secrets, and how many hunks were left out.

    `sources` are the texts that the diff is made of: a secret is known by what stands around it there.
    """
    clean = without_values(secrets_in(sources))
    header: list[str] = []
    hunks: list[list[str]] = []
    for line in lines:
        if line.startswith("@@ "):
            hunks.append([line])
        else:
            (hunks[-1] if hunks else header).append(line)
    kept = [hunk for each in hunks if (hunk := _hunk(each[0], each[1:], clean))]
    return ([*header, *(line for hunk in kept for line in hunk)] if kept else []), len(hunks) - len(kept)


def _hunk(head: str, body: list[str], clean: Callable[[str], str]) -> list[str]:
    """A hunk with less context; empty if a line with a secret cannot be dropped."""
    secret = [clean(line) != line for line in body]
    if not any(secret):
        return [head, *body]
    changes = [at for at, line in enumerate(body) if line[:1] in "+-"]
    first, last = changes[0], changes[-1]
    start = max((at + 1 for at in range(first) if secret[at]), default=0)
    end = min((at for at in range(last + 1, len(body)) if secret[at]), default=len(body))
    if any(secret[start:end]):
        return []
    match = HEAD.fullmatch(head)
    assert match is not None  # difflib wrote it
    shown = body[start:end]
    old, new = (sum(1 for line in shown if line[:1] in kinds) for kinds in (" -", " +"))
    return [f"@@ -{int(match[1]) + start},{old} +{int(match[2]) + start},{new} @@{match[3]}", *shown]
