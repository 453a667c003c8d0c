"""A pool ends although one of its workers was killed."""

import multiprocessing
import os
import signal
import time

from ddpdoctor.system.pools import end_pool


def test_a_pool_ends_whose_worker_was_killed_while_it_waited_for_work() -> None:
    pool = multiprocessing.get_context("fork").Pool(2)
    workers = multiprocessing.active_children()
    time.sleep(0.5)  # one of them now holds the lock of the queue and waits for work
    for worker in workers:
        os.kill(int(worker.pid or 0), signal.SIGKILL)
    before = time.monotonic()
    end_pool(pool, workers)
    assert time.monotonic() - before < 20
    for worker in workers:
        worker.join(10)
        assert worker.exitcode == -signal.SIGKILL
