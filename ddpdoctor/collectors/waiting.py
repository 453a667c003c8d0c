"""Patience with file systems: a call that may never return (a dead NFS or FUSE mount) is waited for in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["NoAnswer", "answer"]

T = TypeVar("T")


class NoAnswer(Exception):
    """The work did not return in time; its thread is left behind."""


def answer(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns or raises, if it does so within `seconds`.

    Raises:
        NoAnswer: it did not.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            results.append(work())
        except Exception as error:  # handed to the caller below
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.001))
    if errors:
        raise errors[0]
    if not results:
        raise NoAnswer(f"no answer within {seconds:.1f} s")
    return results[0]
