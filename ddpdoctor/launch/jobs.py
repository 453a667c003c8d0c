"""What a launch tells one node of its job: how many come, who this one is, and where the store will be.

Only for lines that start this node's part here: an srun, mpirun or ssh in a line starts all parts from one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpdoctor.facts.environ import as_integer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import ELSEWHERE, Launcher
from ddpdoctor.facts.launch.record import Line
from ddpdoctor.facts.nodes import Form
from ddpdoctor.launch.rendezvous import DEFAULT_PORT

__all__ = ["Job", "job_id", "job_of_line"]

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
_JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID", "PBS_JOBID")


@dataclass(frozen=True, slots=True)
class Job:
    """One node's part of a job. `is_host` is what --rdzv-conf says of it, None when it says nothing.

    `nproc` is None where only this machine's GPUs or CPUs tell. `uniform`: ranks are counted as node_rank times `nproc`.
    """

    form: str
    launcher: str
    nnodes: int | None
    least: int | None
    nproc: int | None
    node_rank: int | None
    master_addr: str
    master_port: int
    rdzv_id: str | None = None
    is_host: bool | None = None
    local_addr: str | None = None
    """What this node would publish instead of its name."""
    uniform: bool = False
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    """Names of the nodes, where a scheduler tells them."""


def job_of_line(line: Line) -> Job | None:
    """The job of a launch line, None where the line does not say where its nodes meet. It may be a job of one node."""
    if line.task_starter is not None or any(e.launcher in ELSEWHERE or e.name in ("ssh", "pdsh") for e in line.layers):
        return None
    if line.plan is not None and line.agent is not None and not line.agent.is_garbled:
        return _of_torchrun(line.plan)
    accelerate = line.layer(Launcher.ACCELERATE)
    return _of_accelerate(line) if accelerate is not None and not accelerate.is_garbled else None


def _of_torchrun(plan: Plan) -> Job | None:
    host, port, backend = plan.host, plan.port, plan.backend
    if plan.is_rewritten:  # it would run alone at a port of its own, whatever master the line names
        host, port, backend = plan.settings["master_addr"].value, DEFAULT_PORT, Form.STATIC
    if plan.is_standalone or plan.nnodes is None or backend not in (Form.STATIC, Form.C10D) or not host or port is None:
        return None
    is_static = backend == Form.STATIC
    return Job(
        form=backend,
        launcher="torchrun",
        nnodes=plan.nnodes[1],
        least=plan.nnodes[1] if is_static else plan.nnodes[0],
        nproc=plan.nproc,
        node_rank=plan.node_rank if is_static else None,
        master_addr=host,
        master_port=port,
        rdzv_id=plan.rdzv_id,
        local_addr=plan.settings["local_addr"].value if "local_addr" in plan.settings else None,
        is_host=None if is_static else _is_host(plan.settings["rdzv_conf"].value),
    )


def _is_host(conf: str | None) -> bool | None:
    pairs = dict(item.partition("=")[::2] for item in (conf or "").split(","))
    word = pairs.get("is_host", "").strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _of_accelerate(line: Line) -> Job | None:
    """`accelerate launch` over several machines is static torchrun with names of its own."""
    layer = line.layer(Launcher.ACCELERATE)
    assert layer is not None
    config = line.config or {}

    def told(option: str) -> str | None:
        return layer.value(option) or config.get(option)

    machines, rank = as_integer(told("num_machines")) or 1, as_integer(told("machine_rank"))
    host, ranks = told("main_process_ip"), as_integer(told("num_processes"))
    port = as_integer(told("main_process_port")) or DEFAULT_PORT
    if not host or told("rdzv_backend") not in (None, "static"):
        return None
    return Job(
        form=Form.STATIC,
        launcher="accelerate",
        nnodes=machines,
        least=machines,
        nproc=None if ranks is None else max(ranks // machines, 1),
        node_rank=rank or 0,
        master_addr=host,
        master_port=port,
        uniform=True,
    )


def job_id(variables: Mapping[str, str]) -> str:
    """The scheduler's number of the job, "" without a scheduler."""
    return next((variables[name] for name in _JOB_IDS if variables.get(name)), "")
