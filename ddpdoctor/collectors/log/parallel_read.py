"""Reads on all cores: large files in spans, many files in parallel."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ddpdoctor.collectors.log.reading_watch import current_watch
from ddpdoctor.system.lifetime import die_with, prepare_to_die_with

__all__ = ["SPAN_BYTES", "cores", "on_all_cores", "spans"]

Task = TypeVar("Task")
Done = TypeVar("Done")

SPAN_BYTES = 32 << 20
WORTH_BYTES = 24 << 20
WORTH_FILES = 64
"""Below these a second process costs more than it saves."""


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def spans(size_bytes: int) -> list[tuple[int, int | None]]:
    """(start, bytes) of the spans in which a file is read; the last or only span has no size."""
    count = max(1, size_bytes // SPAN_BYTES)
    starts = [size_bytes * i // count for i in range(count)]
    sizes: list[int | None] = [b - a for a, b in itertools.pairwise(starts)]
    return list(zip(starts, [*sizes, None], strict=True))


def on_all_cores(
    work: Callable[[Task], Done], tasks: Sequence[Task], size_bytes: int, unread: Callable[[Task, str], Done]
) -> Iterator[Done]:
    """The results of `work` for each task, in order. The workers are forks: they share this process's state.

    `unread` makes the result of a task that was not run because of Ctrl-C (`ReadingWatch`), with the reason.
    """
    is_large = len(tasks) > 1 and (size_bytes >= WORTH_BYTES or len(tasks) >= WORTH_FILES)
    results = _forked(work, tasks) if is_large and cores() > 1 else map(work, tasks)
    watch = current_watch()
    if watch is None:
        return iter(results)
    watch.begun(len(tasks), is_large)
    return watch.until_interrupted(iter(results), tasks, unread)


def _forked(work: Callable[[Task], Done], tasks: Sequence[Task]) -> Iterator[Done]:
    global _work
    _work = work
    prepare_to_die_with()
    context = multiprocessing.get_context("fork")
    with context.Pool(min(cores(), len(tasks)), _enlist, (os.getpid(),)) as pool:
        yield from pool.imap(_do, tasks, chunksize=1 if len(tasks) < WORTH_FILES else 8)


_work: Callable[[Any], Any] | None = None


def _enlist(parent: int) -> None:
    """A worker ignores SIGINT, which its parent handles, and ends on SIGTERM and SIGHUP, and with its parent."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)
