"""The only pool of processes: forks of this one, which end with it, whatever became of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from ddpdoctor.system.lifetime import die_with, prepare_to_die_with

if TYPE_CHECKING:
    from multiprocessing.pool import Pool
    from multiprocessing.process import BaseProcess

__all__ = ["ForkedPool", "end_pool", "forked_pool"]

ENDING_SECONDS = 2.0


class ForkedPool:
    """A pool whose workers have everything that this process had loaded when they were forked."""

    def __init__(self, pool: Pool, others: Collection[BaseProcess]) -> None:
        self.pool = pool
        self._others = set(others)

    @property
    def workers(self) -> set[BaseProcess]:
        """Its processes, of which some may have been replaced by new ones."""
        import multiprocessing

        return set(multiprocessing.active_children()) - self._others


@contextlib.contextmanager
def forked_pool(
    count: int, prepare: Callable[[], object] | None = None, *, most_tasks: int | None = None
) -> Iterator[ForkedPool]:
    """A pool of `count` workers that is ended with the block.

    Its workers ignore Ctrl-C, which this process handles, and end on SIGTERM and SIGHUP, and when this process ends.

    Args:
        prepare: called in each worker first.
        most_tasks: after so many tasks a worker is replaced by a new one.
    """
    import multiprocessing  # most commands need no pool

    prepare_to_die_with()
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("fork")
    pool = context.Pool(count, _begin, (os.getpid(), prepare), maxtasksperchild=most_tasks)
    forked = ForkedPool(pool, others)
    try:
        yield forked
    finally:
        end_pool(pool, forked.workers)


def _begin(parent: int, prepare: Callable[[], object] | None) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if prepare is not None:
        prepare()


def end_pool(pool: Pool, workers: Collection[BaseProcess]) -> None:
    """End a pool and its workers.

    A worker that was killed while it waited for work (the OOM killer does that) holds the lock of the queue, and
    `Pool.terminate` waits for that lock forever: then the workers are killed, and the pool is given up.
    """
    ending = threading.Thread(target=pool.terminate, name="end of pool", daemon=True)
    ending.start()
    ending.join(ENDING_SECONDS)
    if ending.is_alive():
        for worker in workers:
            worker.kill()
