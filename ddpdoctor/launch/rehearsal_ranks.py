"""The processes of a rehearsal: the ranks that a launch line starts, made fewer if there are too many, with their variables."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.environ import as_integer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.launch.task_counts import nodes
from ddpdoctor.light_dataclass import dataclass

__all__ = ["MOST_RANKS", "RehearsedWorld", "world_of"]

MOST_RANKS = 8
"""Ranks of a rehearsal unless the user asks for more."""
GPUS_ALONE = 2
"""Imagined GPUs of a script that starts its ranks itself."""
PORT = "29500"


@dataclass(frozen=True, slots=True)
class RehearsedWorld:
    """What is started: the script or module with its arguments, and the variables and extra arguments of each process.

    `asked` is the number of ranks of the line where fewer are started; `reason` says why nothing can be started.
    `is_own_starter`: the script starts its ranks itself.
    """

    nodes: int = 1
    per_node: int = 1
    asked: int | None = None
    script: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()
    environs: tuple[dict[str, str], ...] = ()
    extra: tuple[tuple[str, ...], ...] = ()
    is_own_starter: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def gpus(self) -> int:
        """Imagined GPUs of each node."""
        return max(self.per_node, GPUS_ALONE) if self.is_own_starter or self.per_node == 1 else self.per_node


def world_of(line: LaunchLine, most: int | None = None) -> RehearsedWorld:
    """The world of a line with at most `most` ranks (default MOST_RANKS)."""
    layer = line.starter or line.program
    program = layer.reading.script if layer is not None else None
    if layer is None or program is None or UNKNOWN in program.text:
        return RehearsedWorld(reason="the launch line has no script that can be read")
    is_module = layer.given("module") is not None
    count_of_nodes, per_node = _counts(line)
    is_own = per_node is None
    asked = count_of_nodes * (per_node or 1)
    shrunk = _shrunk(count_of_nodes, per_node or 1, most or MOST_RANKS)
    started = shrunk[0] * shrunk[1]
    variables = {k: v for k, v in line.environ.variables.items() if UNKNOWN not in v}
    environs, extra = _ranks(line, *shrunk) if not is_own else (({},), ((),))
    return RehearsedWorld(
        nodes=shrunk[0],
        per_node=(most or GPUS_ALONE) if is_own else shrunk[1],
        asked=asked if started < asked else None,
        script="" if is_module else program.text,
        module=program.text if is_module else "",
        arguments=tuple(word.text for word in layer.reading.arguments),
        environs=environs,
        extra=extra,
        is_own_starter=is_own,
        variables=variables,
    )


def _counts(line: LaunchLine) -> tuple[int, int | None]:
    """Nodes, and ranks per node; None for a plain `python` line, whose script starts its ranks itself."""
    starter = line.starter
    if starter is not None and line.plan is not None and starter is line.agent:
        found = line.plan.nnodes[1] if line.plan.nnodes is not None else 1
        return found, line.plan.nproc or GPUS_ALONE
    if starter is not None:
        found = as_integer(starter.value("num_machines") or starter.value("num_nodes")) or 1
        config = line.config or {}
        total = as_integer(starter.value("num_processes") or config.get("num_processes"))
        if starter.launcher is LauncherKind.ACCELERATE:
            found = as_integer(starter.value("num_machines") or config.get("num_machines")) or 1
            return found, max((total or GPUS_ALONE) // found, 1)
        return found, ranks_here(line) or GPUS_ALONE
    if line.task_starter is not None:
        return nodes(line) or 1, ranks_here(line) or GPUS_ALONE
    size = as_integer(line.environ.get("WORLD_SIZE"))
    if size is not None and size > 1 and line.environ.get("RANK") is not None:
        return 1, size
    return 1, None


def _shrunk(count_of_nodes: int, per_node: int, most: int) -> tuple[int, int]:
    """Nodes and ranks per node with at most `most` ranks: at least two nodes of two ranks, where there are that many."""
    if count_of_nodes * per_node <= most:
        return count_of_nodes, per_node
    if count_of_nodes == 1:
        return 1, max(most, 1)
    if per_node == 1:
        return max(most, 2), 1
    keep = max(min(per_node, most // 2), 2)
    return max(most // keep, 2), keep


def _ranks(
    line: LaunchLine, count_of_nodes: int, per_node: int
) -> tuple[tuple[dict[str, str], ...], tuple[tuple[str, ...], ...]]:
    environs, extra = [], []
    starter = line.starter
    launcher = starter.launcher if starter is not None else None
    world = count_of_nodes * per_node
    for rank in range(world):
        node, local = divmod(rank, per_node)
        numbers = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(per_node),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": PORT,
        }
        if launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY, LauncherKind.ACCELERATE):
            numbers |= _of_torchrun(node, count_of_nodes, rank, world, local)
        elif launcher is LauncherKind.DEEPSPEED:
            numbers.pop("GROUP_RANK")
            numbers |= {"CROSS_RANK": str(node), "CROSS_SIZE": str(count_of_nodes), "LOCAL_SIZE": str(per_node)}
        elif line.task_starter is not None:
            numbers = _of_scheduler(line, node, count_of_nodes, local, per_node)
        if launcher is LauncherKind.ACCELERATE and starter is not None:
            numbers |= _of_accelerate(line)
        environs.append(numbers)
        needs_option = launcher is LauncherKind.DEEPSPEED or (
            launcher is LauncherKind.LEGACY and starter is not None and starter.given("use_env") is None
        )
        option = "--local_rank" if launcher is LauncherKind.DEEPSPEED else "--local-rank"
        extra.append((f"{option}={local}",) if needs_option else ())
    return tuple(environs), tuple(extra)


def _of_torchrun(node: int, count_of_nodes: int, rank: int, world: int, local: int) -> dict[str, str]:
    return {
        "GROUP_WORLD_SIZE": str(count_of_nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_ERROR_FILE": "/dev/null",
    }


def _of_accelerate(line: LaunchLine) -> dict[str, str]:
    starter, config = line.starter, line.config or {}
    precision = (
        (starter.value("mixed_precision") if starter is not None else None) or config.get("mixed_precision") or "no"
    )
    return {"ACCELERATE_MIXED_PRECISION": precision, "FORK_LAUNCHED": "0"}


def _of_scheduler(line: LaunchLine, node: int, count_of_nodes: int, local: int, per_node: int) -> dict[str, str]:
    """What srun or mpirun sets; the ranks join through it or through variables that the job file exports."""
    rank, world = node * per_node + local, count_of_nodes * per_node
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": line.environ.get("MASTER_PORT") or PORT, "GROUP_RANK": str(node)}
    if line.layer(LauncherKind.MPIRUN) is not None:
        return {
            **own,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(world),
        }
    names = ",".join(f"node{index}" for index in range(count_of_nodes))
    return {
        **own,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(world),
        "SLURM_NPROCS": str(world),
        "SLURM_NNODES": str(count_of_nodes),
        "SLURM_JOB_NUM_NODES": str(count_of_nodes),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_TASKS_PER_NODE": str(per_node),
        "SLURM_JOB_ID": "1",
        "SLURM_JOBID": "1",
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_GPUS_ON_NODE": str(per_node),
        "SLURMD_NODENAME": f"node{node}",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }
