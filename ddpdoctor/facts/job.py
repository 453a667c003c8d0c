"""`job`: the processes that a job consists of, whatever launcher starts them."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Agent", "Job", "Process", "Rendezvous"]


@dataclass(frozen=True, slots=True)
class Process:
    """One rank. Unknown fields are None.

    `node` is the index of its node in the job, `argv` its script with the arguments (words that only a shell could expand are
    UNKNOWN), `environ` and `cwd` are those of its launcher, `started_by` is the launcher's name. `evidence` is its path in
    the facts, such as `launch.lines[3]`.
    """

    node: int
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    argv: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    started_by: str = ""
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """The launcher on one node, as a launch line gives it: torchrun, or accelerate with torchrun's terms."""

    line: LaunchLine
    layer: Layer
    plan: Plan


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The rendezvous of the nodes; a field on which the nodes disagree is None."""

    backend: str | None = None
    host: str | None = None
    port: int | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `launcher` is the name of what starts its ranks, `name` that of its script or module.

    `agents` are the launchers of its nodes, in the order of the launch lines; () where no line was given. `processes` are
    its ranks, as far as their number is known. `ranks_per_node` and `world_size` count the ranks also where they are not
    listed, as those of srun, mpirun or deepspeed.
    """

    processes: tuple[Process, ...] = ()
    launcher: str = ""
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    name: str | None = None
    agents: tuple[Agent, ...] = ()
    ranks_per_node: int | None = None
    world_size: int | None = None

    @property
    def nodes(self) -> tuple[Agent, ...]:
        """The agents, for what is compared between nodes: () unless there are at least two."""
        return self.agents if len(self.agents) > 1 else ()
