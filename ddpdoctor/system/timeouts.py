"""Calls with a timeout: a call that may never return (dead NFS mount, resolver) runs in a thread that can be abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["CallTimeout", "call_each_with_timeout", "call_with_timeout"]

K = TypeVar("K")
T = TypeVar("T")


class CallTimeout(Exception):
    """The call timed out; its thread is abandoned."""


def call_with_timeout(work: Callable[[], T], seconds: float) -> T:
    """The result of `work`, or its exception, within `seconds`.

    Raises:
        CallTimeout: it takes longer.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            results.append(work())
        except Exception as error:  # raised to the caller below
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.001))
    if errors:
        raise errors[0]
    if not results:
        raise CallTimeout(f"timed out after {seconds:.1f} s")
    return results[0]


def call_each_with_timeout(work: Callable[[K], T], items: Iterable[K], seconds: float) -> tuple[dict[K, T], list[K]]:
    """The results of `work`, which must not raise, for each item, and the items that took longer than `seconds`."""
    wanted = list(items)
    results: dict[K, T] = {}
    late: list[K] = []

    def walk(place: list[int]) -> None:
        while place[0] < len(wanted):
            item = wanted[place[0]]
            result = work(item)
            if item in late:
                return  # another thread has continued
            results[item] = result
            place[0] += 1

    place = [0]
    while place[0] < len(wanted):
        thread = threading.Thread(target=walk, args=(place,), daemon=True)
        thread.start()
        before = -1
        while thread.is_alive() and place[0] != before:
            before = place[0]
            thread.join(seconds)
        if thread.is_alive():
            late.append(wanted[before])
            place = [before + 1]
        else:
            break
    return results, late
