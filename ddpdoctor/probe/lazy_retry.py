"""A retry after eager initialization failed, with communicators that NCCL creates lazily.

`device_id` makes init_process_group create the communicator immediately. That alone has failed and hung before, and a job
that works without it must not be reported as broken.
"""

from __future__ import annotations

import select
import time

from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.worker_start import WORKER, adopt, begin

__all__ = ["is_worth_a_try", "retry"]

LONGEST_SECONDS = 25.0
SHORTEST_SECONDS = 5.0
WORKS = "works"


def is_worth_a_try(probe: Probe, seconds_left: float) -> bool:
    """Whether NCCL failed in eager initialization, and not because a process is lost or misplaced."""
    causes = [o for o in probe.observations if o.is_cause]
    kinds = (Kind.EXCEPTION, Kind.PEER_ERROR, Kind.HANG)
    return (
        probe.backend == "nccl"
        and seconds_left > SHORTEST_SECONDS
        and bool(causes)
        and all(o.kind in kinds and o.phase in ("init", "barrier") for o in causes)
    )


def retry(rank_env: RankEnv, seconds: float) -> str:
    """Run init and one checked all_reduce in a fresh worker without `device_id`; "works", or the error."""
    end = time.monotonic() + min(seconds, LONGEST_SECONDS)
    (worker,) = adopt(begin(WORKER), [rank_env])
    try:
        is_ordered = False
        while time.monotonic() < end:
            select.select(worker.files(), [], [], 0.1)
            worker.read()
            wrong = worker.look(time.monotonic())
            if wrong is not None:
                return wrong.message
            if worker.phase in ("collectives", "measure", "done"):
                return WORKS
            if worker.ready is not None and not is_ordered:
                is_ordered = True
                worker.order(
                    backend="nccl",
                    rank=rank_env.rank,
                    world_size=rank_env.world_size,
                    local_rank=rank_env.local_rank or 0,
                    store=[rank_env.master_addr, rank_env.master_port, rank_env.prefix + "lazy/"],
                    eager=False,
                    per_host=0,
                    computes=False,
                    loopback=False,
                )
        return f"hangs in {worker.phase} as well"
    finally:
        worker.kill()
