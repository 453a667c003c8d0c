"""What a job file starts: programs on imagined hosts, with their environment and the launchers around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.pod import Pod
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.shell_commands import InvokedCommand
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ImaginedRun", "Launched", "MissingVariables", "Place", "StartedProgram", "Starter", "Withheld"]


_NOWHERE = Origin("", 0, 0)


@dataclass(frozen=True, slots=True)
class Starter:
    """What starts a command on hosts: srun, mpirun, jsrun, flux, ssh. `hosts` are those that it uses.

    `at` is where its name is written, `places` where each of its options is, by its spelling. `tasks` are all that it starts.
    """

    name: str
    at: Origin
    hosts: tuple[str, ...] = ()
    tasks: int = 1
    places: Mapping[str, Origin] = field(default_factory=dict)
    slots: int | None = None
    """The processes that the hosts take, where its options limit them."""
    refused: str = ""
    """A row of its host file that it refuses."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """A variable that the job file sets and that a launcher does not pass on. `by` is what the finding calls the launcher."""

    value: Value
    by: str
    at: Origin


@dataclass(frozen=True, slots=True)
class Place:
    """The process that a command runs in: its host, its task, its environment."""

    host: str
    node: int
    task: int = 0
    local: int = 0
    gpus: int | None = None
    cpus: int | None = None
    via: tuple[str, ...] = ()
    """The launchers around it, outermost first."""
    hostname: str | None = None
    """What `hostname` prints there where that is not the name of the host; then no address is compared with the name."""
    unset: frozenset[str] = frozenset()
    """Variables that are certainly not set outside."""
    starter: Starter | None = None
    """The innermost program that put it on its host."""
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    """What it lacks of the environment of the job file."""
    missed: frozenset[str] = frozenset()
    """Those of them that a text around it expands, or its words."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launcher of ranks, or a rank, on one imagined host.

    `group` numbers the statement of the job file that starts it: what one statement starts on all hosts is one job.
    `layer` is what its parser makes of its words, `environ` its environment, `origin` where it was written.
    """

    place: Place
    layer: Layer
    argv: tuple[Value, ...]
    words: tuple[Word, ...]
    environ: dict[str, Value]
    folder: str | None
    origin: Origin
    group: int
    is_certain: bool = True
    is_background: bool = False
    pod: Pod | None = None
    """The pods of its job, for a manifest."""
    order: int = 0
    """How many commands the file's own shell had run before."""
    ranks: int | None = None
    """How many ranks it starts on its host, where that does not follow from its words."""
    pool: Mapping[str, int] | None = None
    """The hosts and slots of the host file that it reads."""
    active: Mapping[str, int] | None = None
    """The hosts that it uses of them, with the number of their GPUs."""
    hostfile: str | None = None
    """The text of the host file that its deepspeed reads."""
    statement: Origin = _NOWHERE
    """The statement of the file's own shell."""
    is_left: bool = False
    """It runs in the background of a subshell, for which no `wait` of the file's own shell waits."""
    trainer: Mapping[str, int] = field(default_factory=dict)
    """The devices and num_nodes that LightningCLI gets from its words or their configuration file."""


@dataclass(slots=True)
class ImaginedRun:
    """What a job file starts, and what of it was not understood."""

    launched: list[Launched] = field(default_factory=list)
    allocation: Allocation = field(default_factory=Allocation)
    left_out: list[str] = field(default_factory=list)
    invoked: list[InvokedCommand] = field(default_factory=list)
    """The commands of the file's own shell, in order."""
    missing: list[MissingVariables] = field(default_factory=list)
    programs: list[StartedProgram] = field(default_factory=list)
    """Programs that are no launchers of ranks, host by host."""
    submits: bool = False
    """The file submits batch jobs, whose allocations are their own."""

    def add_groups(self, groups: Sequence[Sequence[Launched]]) -> None:
        """Add jobs: each gets a group of its own."""
        for number, members in enumerate(groups, len(self.launched) + 1):
            self.launched += [replace(each, group=number, is_background=False) for each in members]


@dataclass(frozen=True, slots=True)
class MissingVariables:
    """Variables that a shell uses and that the one around it has set, but not passed on. `origin` is the command's."""

    names: tuple[str, ...]
    origin: Origin
    via: tuple[str, ...]
    is_certain: bool


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A program on one imagined host that starts no ranks that are known."""

    place: Place
    argv: tuple[Value, ...]
    origin: Origin
    is_certain: bool
    is_background: bool
    is_alone: bool = False
    """A launcher starts it, without a shell in which something else runs as well."""
