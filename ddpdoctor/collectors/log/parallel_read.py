"""Reads on all cores: large files in spans, many files in parallel."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ddpdoctor.collectors.log.reading_watch import current_watch
from ddpdoctor.system.pools import forked_pool

__all__ = ["KILLED", "SPAN_BYTES", "cores", "on_all_cores", "spans"]

Task = TypeVar("Task")
Done = TypeVar("Done")

SPAN_BYTES = 32 << 20
WORTH_BYTES = 24 << 20
WORTH_FILES = 64
"""Below these a second process costs more than it saves."""
LOOK_SECONDS = 0.5
LOST_SECONDS = 30.0
"""How long after a worker was killed the others may take for their next result."""
KILLED = "its reader was killed (out of memory?)"


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
    results = _forked(work, tasks, unread) if is_large and cores() > 1 else map(work, tasks)
    watch = current_watch()
    if watch is None:
        return iter(results)
    watch.begun(len(tasks), is_large)
    return watch.until_interrupted(iter(results), tasks, unread)


def _forked(work: Callable[[Task], Done], tasks: Sequence[Task], unread: Callable[[Task, str], Done]) -> Iterator[Done]:
    """The results in order. After a worker was killed, the tasks whose results no longer arrive are `unread`."""
    from multiprocessing import TimeoutError as Late

    global _work
    _work = work
    with forked_pool(min(cores(), len(tasks))) as forked:
        workers = forked.workers
        size = 1 if len(tasks) < WORTH_FILES else 8
        chunks = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        results = forked.pool.imap(_do, chunks)
        done, last = 0, time.monotonic()
        while done < len(chunks):
            try:
                result = results.next(timeout=LOOK_SECONDS)
            except Late:
                lost = any(worker.exitcode not in (None, 0) for worker in workers)
                if lost and time.monotonic() - last > LOST_SECONDS:
                    break
                continue
            done, last = done + 1, time.monotonic()
            yield from result
        for task in tasks[done * size :]:
            yield unread(task, KILLED)


_work: Callable[[Any], Any] | None = None


def _do(tasks: Sequence[Any]) -> list[Any]:
    assert _work is not None
    return [_work(task) for task in tasks]
