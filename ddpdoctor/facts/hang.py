"""The section `hang`. Dumps are kept in columns: 64 of them have more than 100,000 entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.ras import Ras
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "Call",
    "CallState",
    "ChildProcess",
    "DebugAnswer",
    "Dump",
    "Hang",
    "NamedProcess",
    "Operation",
    "ProcessGroup",
    "RankProcess",
    "Stack",
    "StackFrame",
    "Thread",
]

SYMMETRIC = frozenset(
    (
        "all_gather",
        "all_gather_into_tensor_coalesced",
        "all_gather_single",
        "all_reduce",
        "all_reduce_barrier",
        "all_to_all",
        "all_to_all_single",
        "allreduce_coalesced",
        "_all_gather_base",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "_reduce_scatter_base",
    )
)
"""Collectives that no rank completes before all have entered. A broadcast's root and a reduce's senders may return early."""


class CallState(str, Enum):
    """How far a call got. Gloo records nothing between `scheduled` and `retired`, and `retired` covers success and failure."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"
    RETIRED = "retired"
    TIMED_OUT = "timed_out"

    @property
    def is_over(self) -> bool:
        """The call ended without an error, as far as the dump shows."""
        return self in (CallState.COMPLETED, CallState.RETIRED)


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of call at one source line. `sizes` is `[4]` or `[[4], [2, 3]]`; `dtypes` lists those of the input first.

    `peer` is the other end of a send or recv as a rank of its group; `file` and `line` are the innermost frame of the
    user's own code, None where the dump has no stacks.
    """

    name: str
    sizes: str = ""
    input_numel: int | None = None
    output_numel: int | None = None
    dtypes: str = ""
    peer: int | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None

    def __str__(self) -> str:
        return self.name if self.sizes in ("", "[]") else f"{self.name}({self.sizes})"

    @property
    def place(self) -> str:
        """` at train.py:17`, "" when unknown."""
        return f" at {self.file.rpartition('/')[2]}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as one rank knows it. `ranks` are global and empty when the dump does not list them.

    `enqueued` and `completed` are the sequence numbers of the last collective that was enqueued and completed, None
    when the dump does not have them.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    backend: str = ""
    enqueued: int | None = None
    completed: int | None = None

    @property
    def key(self) -> tuple[str, str, str, tuple[int, ...]]:
        """Identity of the group. Groups of different ranks may share a name, and the backends of one group count separately.
        There is one default group, though not every dump lists its ranks.
        """
        if self.description == "default_pg":
            return self.name, self.description, self.backend, ()
        return self.name, self.description, self.backend, self.ranks

    @property
    def is_default(self) -> bool:
        return self.description == "default_pg" or self.name in ("0", "") or self.name == "default_pg"


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of a dump. `sequence` counts the collectives of its group, or its sends and recvs."""

    record: int
    group: ProcessGroup
    sequence: int
    op: Operation
    state: CallState
    is_p2p: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """The contents of one rank's Flight Recorder. The columns have one item per entry, oldest first.

    `rank` is None when neither the file's name nor its content has it; `has_wrapped`: older entries were
    overwritten. Times are Unix nanoseconds of the rank's own clock, None when there are none.
    `problem` is the reason why a part is missing.
    """

    source: str
    rank: int | None = None
    version: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    ops: tuple[Operation, ...] = ()
    records: tuple[int, ...] = ()
    group_of: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    op_of: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    p2p: tuple[bool, ...] = ()
    first_ns: int | None = None
    last_ns: int | None = None
    world_size: int | None = None
    problem: str | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def has_wrapped(self) -> bool:
        return bool(self.records) and min(self.records) > 0

    def call(self, index: int) -> Call:
        """The entry at an index of the columns."""
        return Call(
            self.records[index],
            self.groups[self.group_of[index]],
            self.sequences[index],
            self.ops[self.op_of[index]],
            CallState(self.states[index]),
            self.p2p[index],
        )

    def calls(self) -> Iterator[Call]:
        """All entries, oldest first."""
        return (self.call(index) for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a process, its frames innermost first. `is_main` is the thread that runs the script."""

    name: str = ""
    frames: tuple[StackFrame, ...] = ()
    is_main: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """The Python stacks of one process, as `tool` (py-spy or faulthandler) wrote them to `source`."""

    source: str
    tool: str
    pid: int | None = None
    rank: int | None = None
    command: str = ""
    threads: tuple[Thread, ...] = ()
    host: str = ""

    @property
    def main(self) -> Thread | None:
        """The thread that runs the script."""
        return next((t for t in self.threads if t.is_main), self.threads[0] if self.threads else None)


@dataclass(frozen=True, slots=True)
class DebugAnswer:
    """What torch's debug server (torch.distributed.debug) got from one rank if it is not what it asked for.

    `trouble` is `no answer` or `unhealthy`, `text` the server's words, `line` where they are in `source`.
    """

    source: str
    rank: int
    trouble: str
    text: str = ""
    host: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A child process of a rank: a data loader worker, a compiler, a command. `state` is the letter of /proc/PID/stat."""

    pid: int
    name: str
    state: str = ""
    wchan: str = ""
    is_copy: bool = False
    """It runs the same program as the rank (a fork), or was spawned by multiprocessing."""
    frames: tuple[StackFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of one rank as /proc shows it. Fields that could not be read are None or empty.

    `job` is the same for all ranks of a job. `state` is the letter of /proc/PID/stat; `wchan` the kernel function and `call` the
    system call that the main thread waits in, `file` the file or socket of that call, `kernel_stack` its frames in the kernel.
    `cpu_share` is the CPU time per second of the whole process while it was watched, and `switches` how often its
    main thread went to sleep meanwhile. `runs_gloo`: whether one of Gloo's threads is in a collective; None where torch
    does not name its threads. `frames` are the main thread's, innermost first, where py-spy gave them;
    `traced_by` is the pid of a debugger. `oom_kills` is the count of its cgroup. `variables` are the environment
    variables that matter to a distributed job.
    """

    pid: int
    host: str = ""
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    job: str = ""
    command: str = ""
    state: str = ""
    wchan: str = ""
    call: str = ""
    file: str | None = None
    kernel_stack: tuple[str, ...] = ()
    cpu_share: float | None = None
    switches: int | None = None
    runs_gloo: bool | None = None
    traced_by: int | None = None
    oom_kills: int | None = None
    memory_bytes: int | None = None
    children: tuple[ChildProcess, ...] = ()
    frames: tuple[StackFrame, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """How messages name this rank."""
        name = f"rank {self.rank}" if self.rank is not None else "the rank"
        details = [f"pid {self.pid}"] if self.pid else []
        details += [f"on {self.host}"] if self.host else []
        return f"{name} ({' '.join(details)})" if details else name


@dataclass(frozen=True, slots=True)
class NamedProcess:
    """A process that the user named and that is not a rank and has none below it: `reason` says what it is."""

    pid: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Hang(Section):
    """Evidence about a job that hangs, or hung when it ended. No equality: the dumps may be large.

    `seconds` is how long the processes were watched. `not_ranks` are given processes that are not ranks.
    """

    dumps: tuple[Dump, ...] = ()
    stacks: tuple[Stack, ...] = ()
    processes: tuple[RankProcess, ...] = ()
    ras: tuple[Ras, ...] = ()
    debug_answers: tuple[DebugAnswer, ...] = ()
    seconds: float = 0.0
    not_ranks: tuple[NamedProcess, ...] = ()
    gaps: tuple[Gap, ...] = ()
