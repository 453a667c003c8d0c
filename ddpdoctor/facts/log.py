"""The section `log`: sources, the lines that matter, tracebacks and exit codes, each with the rank that it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.xids import Xid

__all__ = [
    "FATAL",
    "EventKind",
    "Exit",
    "GpuAddress",
    "InputKind",
    "JobMark",
    "JobOutcome",
    "Log",
    "LogEvent",
    "LogLine",
    "LogProcess",
    "LogSource",
    "MarkKind",
    "ProcessOutcome",
    "Traceback",
    "TracebackFrame",
    "Who",
]

FATAL = "Fatal Python error"
"""What faulthandler prints, in place of an exception's name, for a process that a signal ended."""

_PARTS = (
    r"/torch/(_\w+|amp|ao|autograd|backends|compiler|cpu|cuda|distributed|export|fft|functional\.py|func|futures|fx|hub\.py|jit"
    r"|library\.py|linalg|multiprocessing|nn|nested|onnx|optim|overrides\.py|package|profiler|quantization|serialization\.py"
    r"|sparse|special|storage\.py|tensor\.py|testing|utils|xpu)(/|\.py$|$)"
)
"""The parts of torch itself: a folder of the job may be called torch as well."""
_LIBRARY = re.compile(
    rf"/(site|dist)-packages/|(^|/)lib(64)?/python3[\d.]*/|^<(?!stdin>|string>)|{_PARTS}|^/pytorch/|/bin/\w+$|\.pyx$"
)
"""Files of Python, torch and what pip installs: the last frame before them is the job's."""
_OF_TORCH = re.compile(rf"-packages/torch/|{_PARTS}|^<|(^|/)lib(64)?/python3[\d.]*/(?!(site|dist)-packages/)|/bin/\w+$")
"""Of these, the files of Python and torch themselves."""
_OF_A_TOOL = re.compile(
    r"Command \W{0,3}(\S*/)?(\S*-)?(g?cc|[gc]\+\+|clang(\+\+)?|nvcc|hipcc|ptxas|ld|make|cmake|which|hostname|ldconfig|nvidia-smi"
    r"|git|pip3?|wget|curl|tar|unzip|ffmpeg|aws|gsutil|rsync|cp)(-[\d.]+)?[\W ]"
)
"""What a worker prints about a compiler or another tool that failed; for a build by ninja torch prints more."""


class InputKind(str, Enum):
    """What an input is. `collectors/log/input_kind.py` tells them apart."""

    TEXT = "text"
    KERNEL = "kernel"
    ERROR_FILE = "error_file"
    DUMP = "dump"
    STACKS = "stacks"
    RAS = "ras"
    REPORT = "report"
    FACTS = "facts"
    BINARY = "binary"
    EMPTY = "empty"
    NVIDIA_SMI = "nvidia-smi"
    IBSTAT = "ibstat"
    DCGMI = "dcgmi"
    LSPCI = "lspci"
    NCCL_TESTS = "nccl-tests"
    SCRIPT = "script"
    SHELL = "shell"
    NOTEBOOK = "notebook"
    MANIFEST = "manifest"
    JSON = "json"
    IMAGE = "image"
    ARCHIVE = "archive"
    CHECKPOINT = "checkpoint"
    SPECIAL = "special"
    """A named pipe, a socket or a device in a folder, which is not opened."""


@dataclass(frozen=True, slots=True)
class Who:
    """Who printed something, as far as the line, its neighbours and the file's name say. Ranks are global.

    `task` is the number that srun --label puts before a line: a rank, or a node where each task is a launcher. `device` is
    CUDA's number of the process's GPU, as NCCL writes it: a local rank at best, never a global one.
    """

    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    task: int | None = None
    device: int | None = None

    def may_be(self, other: Who) -> bool:
        """Whether nothing that is known of both distinguishes them: rank, host and task."""
        pairs = ((self.rank, other.rank), (self.host, other.host), (self.task, other.task))
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class LogSource:
    """One input. `who` is what its name says of all its lines; `problem` is why not all of it was read, None if it was.

    `attempt` is the number of the restart in a torchrun --log-dir tree; `restarted_at` is the first line in which a
    launcher says that it starts the workers once more.
    """

    name: str
    kind: InputKind = InputKind.TEXT
    size_bytes: int = 0
    lines: int = 0
    who: Who = field(default_factory=Who)
    attempt: int | None = None
    restarted_at: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that matters, without colours and prefixes, cut at 2000 characters.

    `source` is the index of its source, `number` counts from 1. Where one rank repeats a line with other numbers in
    it, only the first is kept: `count` says how many there were and `last` is the number of the last one.
    """

    source: int
    number: int
    text: str
    who: Who = field(default_factory=Who)
    time: str | None = None
    count: int = 1
    last: int = 0


class MarkKind(str, Enum):
    """What a line says of the job that its source is about."""

    START = "start"
    """A launcher or a scheduler starts a job."""
    ID = "id"
    """The id that a scheduler or a user gave the job."""


@dataclass(frozen=True, slots=True)
class JobMark:
    """A line that tells jobs apart. `ids` are (kind of id, id): ("slurm", "4712"), ("run", "sweep1").

    `by` is who says that it starts a job: two of them may say it of one start. `tail` are the last lines before it that hold
    text: if a job ends there, they are its end.
    """

    source: int
    number: int
    kind: MarkKind
    ids: tuple[tuple[str, str], ...] = ()
    by: str = ""
    who: Who = field(default_factory=Who)
    tail: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class TracebackFrame:
    """One frame of a Python traceback; `code` is its source line, where the traceback holds it."""

    file: str
    line: int
    function: str = ""
    code: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Traceback:
    """A Python traceback. `number` is the line of its exception, `begin` that of its head; `frames` are outermost first.

    Where the text ends within it, `exception` is empty. `has_joined`: torch itself put `[rankN]:` before it, so the
    rank had a process group (torch 2.3 and newer). `is_chained`: the text says that it was raised over the one above it.
    """

    source: int
    number: int
    exception: str
    message: str = ""
    frames: tuple[TracebackFrame, ...] = ()
    who: Who = field(default_factory=Who)
    time: str | None = None
    has_joined: bool = False
    begin: int = 0
    is_chained: bool = False

    @property
    def is_line(self) -> bool:
        """Whether the text holds the exception's own line alone: a process may only have reported it."""
        return not self.frames and self.begin == self.number

    @property
    def is_summary(self) -> bool:
        """Whether a launcher raised it over a worker that failed."""
        name = self.exception.rpartition(".")[2]
        return name == "ChildFailedError" or (name == "CalledProcessError" and not _OF_A_TOOL.match(self.message))

    @property
    def is_exit_barrier(self) -> bool:
        """Whether it is of a launcher that waited for the other launchers at its end, when its own workers were done."""
        return any(frame.function == "_exit_barrier" for frame in self.frames)

    @property
    def own_frames(self) -> tuple[TracebackFrame, ...]:
        """The frames of the job's own code."""
        return tuple(frame for frame in self.frames if not _LIBRARY.search(frame.file.replace("\\", "/")))

    @property
    def place(self) -> TracebackFrame | None:
        """The innermost frame of the job's own code; where all of it is a library's, the innermost before Python's and torch's.

        Code without a file, as a dataclass's `<string>`, is a place only where there is no file.
        """
        own = self.own_frames
        files = [frame for frame in own if not frame.file.startswith("<")]
        others = [frame for frame in self.frames if not _OF_TORCH.search(frame.file.replace("\\", "/"))]
        return next((found[-1] for found in (files, own, others, self.frames) if found), None)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its launcher says: an exit code, negative for a signal as in torchrun's summary.

    `by` is the launcher that says it. `is_first` marks what torchrun calls the root cause, which holds for its node only.
    """

    source: int
    number: int
    code: int
    who: Who = field(default_factory=Who)
    by: str = "torchrun"
    time: str | None = None
    is_first: bool = False


class EventKind(str, Enum):
    """What a process printed of interest."""

    EXCEPTION = "exception"
    EXIT = "exit"
    FAILURE = "failure"
    """A line that says that the process or the job failed, without an exception."""
    PEER_LOST = "peer lost"
    CAUGHT = "caught"
    """The words of code that caught an error and goes on."""
    FINISHED = "finished"
    GROUP_FINISHED = "group finished"
    """A launcher says that its workers finished."""
    PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One thing that a process printed. `is_fatal`: the log does not show that anything went on after it."""

    kind: EventKind
    printed: LogLine | Traceback | Exit
    is_fatal: bool = False


class ProcessOutcome(str, Enum):
    """How a process ended, as far as the log shows it."""

    DONE = "done"
    FAILED = "failed"
    RECOVERED = "recovered"
    """It printed an error and went on."""
    CUT_OFF = "cut off"
    """Its output ends while it works, or where its launcher ended it."""
    UNKNOWN = "unknown"


class JobOutcome(str, Enum):
    """How the job ended, as far as the log shows it."""

    FAILED = "failed"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    """Somebody ended it with SIGINT, as Ctrl-C does, before anything had failed."""
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LogProcess:
    """A process of the log, or all of a source's output that names none.

    `who` is what its first line says of it; `pid` is None where the rank or the local rank names the process. `events` are in
    the order of the source. `speaks`: it printed something itself, and is not only named by its launcher.
    """

    source: int
    who: Who
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    speaks: bool = True
    events: tuple[LogEvent, ...] = ()
    outcome: ProcessOutcome = ProcessOutcome.UNKNOWN

    @property
    def failures(self) -> tuple[LogEvent, ...]:
        """Why it failed, the first event first; empty unless it did."""
        return tuple(event for event in self.events if event.is_fatal)


@dataclass(frozen=True, slots=True)
class GpuAddress:
    """The GPU of a host at a bus id without function (`0000:3b:00`), by NVML's index."""

    host: str | None
    bus_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Log(Section):
    """Everything that was read. `world_size` is what the lines say, None when they do not.

    `heads` and `tails` are the first and the last lines of each source that hold text, whether they matter or not; `marks`
    are the lines that tell jobs apart.
    """

    sources: tuple[LogSource, ...] = ()
    lines: tuple[LogLine, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    unfinished: tuple[Traceback, ...] = ()
    """Tracebacks whose end, with the exception, the log does not hold."""
    exits: tuple[Exit, ...] = ()
    heads: tuple[LogLine, ...] = ()
    tails: tuple[LogLine, ...] = ()
    marks: tuple[JobMark, ...] = ()
    xids: tuple[Xid, ...] = ()
    """What kernels wrote of GPUs and NVSwitches, each with its source and line."""
    seats: tuple[GpuAddress, ...] = ()
    """From collected facts among the inputs; what NCCL's lines say is not here."""
    world_size: int | None = None
    gaps: tuple[Gap, ...] = ()

    def __hash__(self) -> int:
        """Cheap: what is found out about a whole log is remembered by it."""
        return hash((len(self.sources), len(self.lines), len(self.tracebacks), len(self.exits), len(self.tails)))

    @property
    def spoken(self) -> tuple[LogLine | Traceback | Exit, ...]:
        """Everything that somebody printed, whatever it is."""
        return (*self.lines, *self.tracebacks, *self.exits)

    def place(self, source: int, number: int) -> str:
        """`name:number`, as editors and grep write a place in a file."""
        return f"{self.sources[source].name}:{number}"
