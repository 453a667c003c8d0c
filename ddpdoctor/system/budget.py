"""A budget of time and memory for work on one input: hostile or generated files may need any amount of both."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TypeVar

__all__ = ["MEBIBYTES", "OverBudgetError", "within_budget"]

T = TypeVar("T")

MEBIBYTES = 512
"""What work on one input may need in addition to what the process has."""


class OverBudgetError(Exception):
    """The work was ended; the message says of what it needed too much."""


class _Late(BaseException):
    """The time is over; not an Exception, so that no code on the way treats it as a fault of its own."""


def within_budget(work: Callable[[], T], seconds: float) -> T:
    """The result of `work`. Time is limited in the main thread only, where a signal can end it; memory too, because its limit
    applies to the whole process.

    Raises:
        OverBudgetError: it needs more seconds, more memory, or is nested too deeply.
    """
    if threading.current_thread() is not threading.main_thread():
        return _tried(work)
    handler = signal.signal(signal.SIGALRM, _end)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + (MEBIBYTES << 20)
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return _tried(work)
    except _Late:
        raise OverBudgetError(f"not examined within {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _tried(work: Callable[[], T]) -> T:
    try:
        return work()
    except MemoryError:
        raise OverBudgetError(f"needs more than {MEBIBYTES} MiB of memory to examine") from None
    except RecursionError:
        raise OverBudgetError("nested too deeply to examine") from None


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _Late


def _data_bytes() -> int:
    """The private writable memory of this process, as RLIMIT_DATA counts it; 0 if /proc does not show it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 1 << 30
