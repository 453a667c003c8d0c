"""Calls with a timeout: a call that may never return (dead NFS mount, resolver) runs in a thread that can be abandoned."""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = [
    "CallTimeout",
    "NoThreadError",
    "call_each_with_timeout",
    "call_with_timeout",
    "finish_all",
    "in_threads",
    "start_thread",
]

K = TypeVar("K")
T = TypeVar("T")


class CallTimeout(Exception):
    """The call timed out; its thread is abandoned."""


class NoThreadError(OSError):
    """No thread can be started: the limit of processes (`ulimit -u`, pids.max) or of memory is reached."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no thread can be started: the limit of processes or of memory is reached")


def start_thread(work: Callable[[], object], name: str | None = None) -> threading.Thread:
    """A running daemon thread.

    Raises:
        NoThreadError: it cannot be started.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # "can't start new thread"
        raise NoThreadError from None
    return thread


def finish_all(works: Iterable[Callable[[], object]], seconds: Callable[[], float]) -> None:
    """Do all this work at the same time, and wait for each for `seconds()`; what takes longer is abandoned.

    Raises:
        NoThreadError: no thread can be started.
        Exception: the first that was raised by a work that has ended.
    """
    errors: list[Exception] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # raised to the caller below
            errors.append(error)

    for thread in [start_thread(functools.partial(attempt, work)) for work in works]:
        thread.join(seconds())
    if errors:
        raise errors[0]


def in_threads(works: Iterable[Callable[[], object]]) -> None:
    """Do all this work at the same time and wait for its end; what no thread can be started for is done in this one."""
    threads: list[threading.Thread] = []
    for work in works:
        try:
            threads.append(start_thread(work))
        except NoThreadError:
            work()
    for thread in threads:
        thread.join()


def call_with_timeout(work: Callable[[], T], seconds: float) -> T:
    """The result of `work`, or its exception, within `seconds`.

    Raises:
        CallTimeout: it takes longer.
        NoThreadError: no thread can be started for it.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            results.append(work())
        except Exception as error:  # raised to the caller below
            errors.append(error)

    thread = start_thread(ask)
    thread.join(max(seconds, 0.001))
    if errors:
        raise errors[0]
    if not results:
        raise CallTimeout(f"timed out after {seconds:.1f} s")
    return results[0]


def call_each_with_timeout(work: Callable[[K], T], items: Iterable[K], seconds: float) -> tuple[dict[K, T], list[K]]:
    """The results of `work`, which must not raise, for each item, and the items that took longer than `seconds`.

    Raises:
        NoThreadError: no thread can be started.
    """
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
        thread = start_thread(functools.partial(walk, place))
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
