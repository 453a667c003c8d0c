"""Progress of reading inputs, and Ctrl-C, which keeps what was read so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["ReadingWatch", "current_watch", "watched"]

Task = TypeVar("Task")
Done = TypeVar("Done")

INTERRUPTED = "not read: interrupted"


class ReadingWatch:
    """Callbacks while parts of inputs are read, and whether Ctrl-C ended the reading.

    `begun` is called with the number of parts and whether they are large, `told` with how many were read.
    """

    def __init__(
        self,
        begun: Callable[[int, bool], None] = lambda total, is_large: None,
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.begun = begun
        self.told = told
        self.is_interrupted = False

    def until_interrupted(
        self, results: Iterator[Done], tasks: Sequence[Task], unread: Callable[[Task, str], Done]
    ) -> Iterator[Done]:
        """The results of all tasks, in their order; `unread` makes the results of tasks that were not run."""
        done = 0
        try:
            for result in results:
                done += 1
                self.told(done, len(tasks))
                yield result
        except KeyboardInterrupt:
            self.is_interrupted = True
        for task in tasks[done:]:
            yield unread(task, INTERRUPTED)


_current: ContextVar[ReadingWatch | None] = ContextVar("reading_watch", default=None)


def current_watch() -> ReadingWatch | None:
    """The watch of the current block; without one, Ctrl-C ends the command."""
    return _current.get()


@contextmanager
def watched(watch: ReadingWatch) -> Iterator[ReadingWatch]:
    """Report reading in this block to `watch`."""
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)
