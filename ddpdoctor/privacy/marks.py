"""The mark that replaces a secret: equal secrets get equal marks within one run, and nothing of the secret can be computed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from ddpdoctor.facts.environ import REMOVED

__all__ = ["Marks", "mark", "marking"]

_NAMED_MARK = "REMOVED_SECRET_"
"""Safe in a shell: a corrected command with it can be pasted, and fails only where the secret is needed."""
_MARK = re.compile(rf"{_NAMED_MARK}[0-9a-f]{{4}}|{re.escape(REMOVED)}")
_QUOTES = re.compile(r"[bru]{0,2}([\"'])(.*)\1", re.DOTALL | re.IGNORECASE)


class Salt(Protocol):
    """Random bytes of a run, made when they are first asked for."""

    @property
    def value(self) -> bytes:
        """The bytes."""


class Marks:
    """The marks of one run. `values` collects the secrets that were marked.

    Args:
        salt: random bytes of this run; without it all secrets get the same mark, which is comparable between runs.
    """

    def __init__(self, salt: Salt | None = None) -> None:
        self._salt = salt
        self.values: set[str] = set()

    def mark(self, value: str) -> str:
        """The mark of one secret; a text that is a mark already stays."""
        quoted = _QUOTES.fullmatch(value)
        bare = quoted[2] if quoted else value.strip("\"'")
        if _MARK.search(bare):
            return value
        self.values.add(bare)
        if self._salt is None:
            return REMOVED
        import hmac  # loads OpenSSL, which most commands do not need

        tag = hmac.new(self._salt.value, bare.encode("utf-8", "replace"), "sha256").hexdigest()[:4]
        return f"{quoted[1]}{_NAMED_MARK}{tag}{quoted[1]}" if quoted else f"{_NAMED_MARK}{tag}"


_CURRENT: ContextVar[Marks] = ContextVar("marks")


@contextmanager
def marking(marks: Marks) -> Iterator[Marks]:
    """Secrets are marked with `marks` inside."""
    token = _CURRENT.set(marks)
    try:
        yield marks
    finally:
        _CURRENT.reset(token)


def mark(value: str) -> str:
    """The mark of this secret."""
    marks = _CURRENT.get(None)
    return (Marks() if marks is None else marks).mark(value)
