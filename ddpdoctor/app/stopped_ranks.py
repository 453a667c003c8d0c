"""The report of `ddpdoctor probe` when all ranks that still run on this node are stopped and cannot report."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from ddpdoctor.collectors.probe import NodeRanks
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.probe.arguments import parse
from ddpdoctor.probe.proc import read_stat
from ddpdoctor.probe.rank_env import read_rank_env, read_rank_env_outside
from ddpdoctor.probe.report_output import write_report
from ddpdoctor.probe.store_rendezvous import report_to_others

__all__ = ["is_stopped", "tell_stopped"]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, or by a debugger."""
    stat = read_stat(pid)
    return stat is not None and stat.state in ("T", "t")


def tell_stopped(
    ranks: Sequence[subprocess.Popen[bytes]], node: NodeRanks, words: Sequence[str], seconds: float
) -> int:
    """Notify the other nodes' ranks if their store can be reached, write the report, `seconds` after the start, and return
    the exit code.
    """
    options, environs = parse(words), node.environs(os.environ)
    places = [read_rank_env(environ) for environ in environs]
    observations = tuple(
        place.observe(
            Kind.STOPPED,
            f"the supervisor of rank {place.rank} on {place.host} (pid {rank.pid}) is stopped (state T)",
            pid=rank.pid,
        )
        for place, rank in zip(places, ranks, strict=True)
        if is_stopped(rank.pid)
    )
    report_to_others(read_rank_env_outside(environs[0]), observations[0])
    probe = Probe(
        world_size=node.world_size,
        backend=options.backend,
        launcher=places[0].launcher,
        master=f"{node.master_addr}:{node.master_port}",
        seconds=round(seconds, 3),
        observations=observations,
    )
    return write_report(probe, places[0], True, options, time.monotonic() - seconds)
