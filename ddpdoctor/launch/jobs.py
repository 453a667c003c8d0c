"""The job of launch lines: its launchers and ranks, and what one line tells its own node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ddpdoctor.facts.environ import as_integer
from ddpdoctor.facts.job import Agent, Job, Process, Rendezvous
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import ELSEWHERE, LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.nodes import Form
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.launch.rendezvous import DEFAULT_PORT, plan_of_machines, plan_without_ssh
from ddpdoctor.launch.task_counts import nodes
from ddpdoctor.light_dataclass import dataclass

__all__ = ["LocalJob", "agent_of", "job_id", "job_of_launch", "jobs_of_launch", "local_job"]

T = TypeVar("T")
MOST_RANKS = 64
"""The most ranks of one node that are listed: no node has more, and a mistyped number may be huge."""

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
_JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID", "PBS_JOBID")


@dataclass(frozen=True, slots=True)
class LocalJob:
    """What one node knows of its job: the number of nodes, its own rank, and the address of the store.

    `is_host` is the value in --rdzv-conf, None if it is not set. `nproc` is None if it depends on the GPUs or CPUs of
    this machine. `uniform`: ranks are counted as node_rank times `nproc`.
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
    """The address that this node publishes instead of its name."""
    uniform: bool = False
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    """Names of the nodes, if a scheduler lists them."""


def job_of_launch(launch: Launch) -> Job:
    """The job of the `--node` lines, or of the only line; empty for other lines, which start several jobs."""
    return _job_of(launch.nodes or (launch.lines if len(launch.lines) == 1 else ()))


def jobs_of_launch(launch: Launch) -> Iterator[Job]:
    """The job of the `--node` lines, or one job for each line. A scheduler may run a line on several nodes."""
    for lines in (launch.nodes,) if launch.nodes else ((line,) for line in launch.lines):
        yield _job_of(lines)


def _job_of(lines: Sequence[LaunchLine]) -> Job:
    """The job that these lines start together."""
    agents = tuple(agent for line in lines if (agent := agent_of(line)) is not None)
    per_node, world_size = _counts(lines)
    if not agents:
        return Job(ranks_per_node=per_node, world_size=world_size)
    plans = [agent.plan for agent in agents]
    script = agents[0].layer.reading.script
    return Job(
        processes=tuple(_processes(agents)),
        launcher=agents[0].layer.launcher.value,
        rendezvous=Rendezvous(
            backend=_common(plans, lambda plan: plan.backend),
            host=_common(plans, lambda plan: plan.host),
            port=_common(plans, lambda plan: plan.port),
            id=_common(plans, lambda plan: plan.rdzv_id),
        ),
        name=None if script is None else script.known,
        agents=agents,
        ranks_per_node=per_node,
        world_size=world_size,
    )


def _counts(lines: Sequence[LaunchLine]) -> tuple[int | None, int | None]:
    """The ranks of each node and of the whole job, if the lines agree. A plain `python` line is unknown: its script may
    start any number of processes.
    """
    started = [line for line in lines if line.starter is not None or line.task_starter is not None]
    if not lines or len(started) < len(lines):
        return None, None
    per_node, number = ({count(line) for line in lines} for count in (ranks_here, _nodes))
    ranks = per_node.pop() if len(per_node) == 1 else None
    nodes = number.pop() if len(number) == 1 else None
    return ranks, ranks * nodes if ranks is not None and nodes is not None else None


def _nodes(line: LaunchLine) -> int | None:
    """The nodes of the line's job, None if the line does not show it."""
    if line.plan is not None and line.starter is line.agent:
        return None if line.plan.nnodes is None else line.plan.nnodes[1]
    starter = line.starter
    if starter is None:
        return nodes(line)
    return as_integer(starter.value("num_machines") or starter.value("num_nodes"))


def agent_of(line: LaunchLine) -> Agent | None:
    """The launcher of a line if its options can be read: torchrun, or accelerate or deepspeed --no_ssh on several machines."""
    if line.agent is not None:
        return None if line.plan is None or line.agent.is_garbled else Agent(line, line.agent, line.plan)
    layer = line.layer(LauncherKind.ACCELERATE)
    if layer is not None and not layer.is_garbled:
        plan = plan_of_machines(layer, line.config or {})
        return None if plan is None else Agent(line, layer, plan)
    layer = line.layer(LauncherKind.DEEPSPEED)
    if layer is None or layer.is_garbled or line.slots is None or layer.given("no_ssh") is None:
        return None
    plan = plan_without_ssh(layer, line.slots)
    return None if plan is None else Agent(line, layer, plan)


def _common(plans: Sequence[Plan], value: Callable[[Plan], T | None]) -> T | None:
    """The value that all plans have."""
    first = value(plans[0])
    return first if all(value(plan) == first for plan in plans) else None


def _processes(agents: Sequence[Agent]) -> Iterator[Process]:
    """The ranks of all nodes. Static rendezvous numbers them by node rank; with c10d they depend on the order of
    joining.
    """
    counts = {agent.plan.nproc for agent in agents}
    size = counts.pop() if len(counts) == 1 else None
    for index, agent in enumerate(agents):
        line, plan, script = agent.line, agent.plan, agent.layer.reading.script
        argv = () if script is None else tuple(word.text for word in (script, *agent.layer.reading.arguments))
        is_numbered = size is not None and plan.backend == Form.STATIC and plan.node_rank is not None
        for local in range(min(plan.nproc or 0, MOST_RANKS)):
            yield Process(
                node=index,
                host=line.host,
                rank=(plan.node_rank or 0) * (size or 0) + local if is_numbered else None,
                local_rank=local,
                world_size=size * plan.nnodes[1] if size is not None and plan.nnodes is not None else None,
                argv=argv,
                environ=line.environ.variables,
                cwd=line.cwd,
                started_by=agent.layer.launcher.value,
                evidence=f"launch.lines[{index if line.node is None else line.node}]",
            )


def local_job(line: LaunchLine) -> LocalJob | None:
    """What a launch line tells its own node, None without a rendezvous address; the job may have only this node.

    None for a line with srun, mpirun or ssh, which start the ranks on other nodes.
    """
    if line.task_starter is not None or any(e.launcher in ELSEWHERE or e.name in ("ssh", "pdsh") for e in line.layers):
        return None
    if line.plan is not None and line.agent is not None and not line.agent.is_garbled:
        return _of_torchrun(line.plan)
    accelerate = line.layer(LauncherKind.ACCELERATE)
    return _of_accelerate(line) if accelerate is not None and not accelerate.is_garbled else None


def _of_torchrun(plan: Plan) -> LocalJob | None:
    host, port, backend = plan.host, plan.port, plan.backend
    if plan.is_rewritten:  # torchrun would use a free port of this host, whatever the master of the line
        host, port, backend = plan.settings["master_addr"].value, DEFAULT_PORT, Form.STATIC
    if plan.is_standalone or plan.nnodes is None or backend not in (Form.STATIC, Form.C10D) or not host or port is None:
        return None
    is_static = backend == Form.STATIC
    return LocalJob(
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


def _of_accelerate(line: LaunchLine) -> LocalJob | None:
    """`accelerate launch` on several machines is static torchrun with other option names."""
    layer = line.layer(LauncherKind.ACCELERATE)
    assert layer is not None
    config = line.config or {}

    def setting(option: str) -> str | None:
        return layer.value(option) or config.get(option)

    machines, rank = as_integer(setting("num_machines")) or 1, as_integer(setting("machine_rank"))
    host, ranks = setting("main_process_ip"), as_integer(setting("num_processes"))
    port = as_integer(setting("main_process_port")) or DEFAULT_PORT
    if not host or setting("rdzv_backend") not in (None, "static"):
        return None
    return LocalJob(
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
    """The job id of the scheduler, "" without a scheduler."""
    return next((variables[name] for name in _JOB_IDS if variables.get(name)), "")
