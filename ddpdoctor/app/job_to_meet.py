"""The job whose other nodes take part in a `ddpdoctor check`: that of its launch line, or of its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launchers import BY_HAND
from ddpdoctor.facts.nodes import Form
from ddpdoctor.launch.jobs import LocalJob, local_job

if TYPE_CHECKING:
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.rules import Rule

__all__ = ["job_to_meet", "starts_ranks"]


def starts_ranks(line: Facts | None) -> bool:
    """Whether a line has a launcher that numbers the ranks; otherwise its process is one rank, or a single process."""
    first = line.launch.lines[0] if line is not None and line.launch is not None and line.launch.lines else None
    return first is not None and (first.starter is not None or first.task_starter is not None)


def job_to_meet(line: tuple[Facts, tuple[Rule, ...]] | None, environ: Mapping[str, str]) -> LocalJob | None:
    """The job whose other nodes this node should join, None if there are none or their address is unknown.

    A line with a mistake that would keep its node from joining, or make it run alone, counts as its corrected form:
    the other nodes wait for this one, and receive its errors.

    Args:
        line: the launch line, with the rules that judge it.
    """
    if line is None or line[0].launch is None or not starts_ranks(line[0]):
        return _job_of_ranks(environ)
    first = line[0].launch.lines[0]
    found = _of_several(local_job(first))
    if found is None:
        from ddpdoctor.app.autocorrect import Autocorrect

        found = _of_several(local_job(Autocorrect(*line).line(first)))
    if found is None:
        return None
    from ddpdoctor.probe.rank_env import node_names

    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return replace(found, hosts=node_names(names))


def _of_several(job: LocalJob | None) -> LocalJob | None:
    """The job, None if it has no other nodes."""
    return None if job is None or (job.nnodes == 1 and _is_here(job.master_addr)) else job


def _job_of_ranks(environ: Mapping[str, str]) -> LocalJob | None:
    """The job of a process that is one rank of several: of srun, mpirun, or plain env://."""
    from ddpdoctor.probe.rank_env import BadEnvironment, read_rank_env

    told = Environ(variables=dict(environ))
    is_rank, size = told.rank is not None or told.has("RANK"), told.world_size
    if not is_rank or told.is_multi_node is False or size == 1 or (size is None and not told.has("WORLD_SIZE")):
        return None
    try:
        place = read_rank_env(environ, os.getppid())
    except BadEnvironment:
        return _without_number(told)
    if place.uses_agent_store:
        return None
    return LocalJob(
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


def _without_number(told: Environ) -> LocalJob | None:
    """The job of a rank whose RANK or WORLD_SIZE is not a number: the others should learn why it will not join. None
    where they cannot.
    """
    rank, size, port = told.rank, told.world_size, told.integer("MASTER_PORT") or 0
    is_numbered = rank is not None and rank >= 0 and size is not None and size > 0
    if is_numbered or not told.master_addr or not 0 < port < 65536:
        return None
    return LocalJob(
        form=Form.ENV,
        launcher=(told.launcher or BY_HAND).title,
        nnodes=told.nnodes,
        least=None,
        nproc=told.local_world_size,
        node_rank=told.node_rank,
        master_addr=told.master_addr,
        master_port=port,
        rank=rank,
        local_rank=told.local_rank,
        world_size=told.world_size,
    )


def _is_here(master_addr: str) -> bool:
    """Whether a job of one node has its store here, as it must. If not, the line belongs to a job of several nodes."""
    if is_loopback(master_addr):
        return True
    from ddpdoctor.collectors.multinode import is_own

    return is_own(master_addr)
