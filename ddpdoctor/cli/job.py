"""Which job a `ddpdoctor check` has other nodes to meet for: its launch line's, or that of the ranks around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.jobs import Job, job_of_line
from ddpdoctor.facts.nodes import Form

if TYPE_CHECKING:
    from ddpdoctor.facts.record import Facts

__all__ = ["job_to_meet"]


def job_to_meet(line: Facts | None, environ: Mapping[str, str]) -> Job | None:
    """The job whose other nodes this one should meet, None where there are none or nobody says where."""
    first = line.launch.lines[0] if line is not None and line.launch is not None and line.launch.lines else None
    if first is None or (first.starter is None and first.task_starter is None):
        return _job_of_ranks(environ)
    found = job_of_line(first)
    if found is None or (found.nnodes == 1 and _is_here(found.master_addr)):
        return None
    from ddpdoctor.probe.place import node_names

    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return replace(found, hosts=node_names(names))


def _job_of_ranks(environ: Mapping[str, str]) -> Job | None:
    """The job of a process that is one rank of several: of srun, mpirun, or plain env://."""
    from ddpdoctor.probe.place import BadEnvironment, read_place

    told = Environ(variables=dict(environ))
    if told.rank is None or (told.world_size or 0) < 2 or told.is_multi_node is False:
        return None
    try:
        place = read_place(environ, os.getppid())
    except BadEnvironment:
        return None
    if place.uses_agent_store:
        return None
    return Job(
        form=Form.ENV,
        launcher=place.launcher,
        nnodes=told.nnodes,
        least=None,
        nproc=place.local_world_size,
        node_rank=place.node_rank,
        master_addr=place.master_addr,
        master_port=place.master_port,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        hosts=place.hosts,
    )


def _is_here(master_addr: str) -> bool:
    """Whether a job of one node has its store here, as it must. Where it does not, the line is one of several nodes'."""
    if is_loopback(master_addr):
        return True
    from ddpdoctor.collectors.meeting import is_own

    return is_own(master_addr)
