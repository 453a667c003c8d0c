"""Pools of processes that end, whatever became of their workers."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.pool import Pool
    from multiprocessing.process import BaseProcess

__all__ = ["end_pool"]

ENDING_SECONDS = 2.0


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
