"""The section `log`: sources, relevant lines, tracebacks and exit codes, each with its rank."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.xids import Xid
from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass

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
"""What faulthandler prints, instead of an exception's name, for a process that a signal killed."""

_PARTS = (
    r"/torch/(_\w+|amp|ao|autograd|backends|compiler|cpu|cuda|distributed|export|fft|functional\.py|func|futures|fx|hub\.py|jit"
    r"|library\.py|linalg|multiprocessing|nn|nested|onnx|optim|overrides\.py|package|profiler|quantization|serialization\.py"
    r"|sparse|special|storage\.py|tensor\.py|testing|utils|xpu)(/|\.py$|$)"
)
"""The packages and modules of torch itself: a folder of the job may be called torch as well."""
_LIBRARY = pattern(
    rf"/(site|dist)-packages/|(^|/)lib(64)?/python3[\d.]*/|^<(?!stdin>|string>)|{_PARTS}|^/pytorch/|/bin/\w+$|\.pyx$"
)
"""Files of Python, torch and pip packages: the last frame before them is in the job's own code."""
_OF_TORCH = pattern(rf"-packages/torch/|{_PARTS}|^<|(^|/)lib(64)?/python3[\d.]*/(?!(site|dist)-packages/)|/bin/\w+$")
"""The files of Python and torch only."""
_OF_A_TOOL = pattern(
    r"Command \W{0,3}(\S*/)?(\S*-)?(g?cc|[gc]\+\+|clang(\+\+)?|nvcc|hipcc|ptxas|ld|make|cmake|which|hostname|ldconfig|nvidia-smi"
    r"|git|pip3?|wget|curl|tar|unzip|ffmpeg|aws|gsutil|rsync|cp)(-[\d.]+)?[\W ]"
)
"""What a worker prints about a compiler or another tool that failed; for a ninja build torch prints more."""


class InputKind(str, Enum):
    """What an input is. `collectors/log/input_kind.py` distinguishes them."""

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
    TOOL = "output of a tool"
    """Of another tool than those above that `ddpdoctor/tool_output` reads."""
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
    """The process that printed something, from the line, adjacent lines and the file's name. Ranks are global.

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
        """Whether both may be one process: rank, host and task are equal, or unknown on one side."""
        pairs = ((self.rank, other.rank), (self.host, other.host), (self.task, other.task))
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class LogSource:
    """One input. `who` applies to all its lines, from its name; `problem` is why it was not read completely, None if
    it was.

    `attempt` is the number of the restart in a torchrun --log-dir tree; `restarted_at` is the first line in which a
    launcher reports that it restarts the workers.
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
    """A relevant line, without colors and prefixes, cut at 2000 characters.

    `source` is the index of its source, `number` counts from 1. If one rank repeats a line with different numbers in
    it, only the first is kept: `count` is how many there were, and `last` the line number of the last one.
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
    """A line that distinguishes jobs. `ids` are (kind of id, id): ("slurm", "4712"), ("run", "sweep1").

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
    """One frame of a Python traceback; `code` is its source line, if the traceback has it."""

    file: str
    line: int
    function: str = ""
    code: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Traceback:
    """A Python traceback. `number` is the line of its exception, `begin` its first line; `frames` are outermost first.

    If the text ends within it, `exception` is empty. `has_joined`: torch itself put `[rankN]:` before it, so the
    rank had a process group (torch 2.3 and newer). `is_chained`: raised during handling of the one before it. `is_title`: the
    title of a report quotes it, so that what comes below was not printed after it.
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
    is_title: bool = False

    @property
    def is_line(self) -> bool:
        """Whether the text has the exception's own line only: a process may have merely reported it."""
        return not self.frames and self.begin == self.number

    @property
    def is_summary(self) -> bool:
        """Whether a launcher raised it because a worker failed."""
        name = self.exception.rpartition(".")[2]
        return name == "ChildFailedError" or (name == "CalledProcessError" and not _OF_A_TOOL.match(self.message))

    @property
    def is_exit_barrier(self) -> bool:
        """Whether a launcher raised it in its exit barrier, waiting for other launchers after its own workers were done."""
        return any(frame.function == "_exit_barrier" for frame in self.frames)

    @property
    def own_frames(self) -> tuple[TracebackFrame, ...]:
        """The frames of the job's own code."""
        return tuple(frame for frame in self.frames if not _LIBRARY.search(frame.file.replace("\\", "/")))

    @property
    def place(self) -> TracebackFrame | None:
        """The innermost frame of the job's own code; without one, the innermost that is not in Python or torch.

        Code without a file, such as a dataclass's `<string>`, counts only if no frame has a file.
        """
        own = self.own_frames
        files = [frame for frame in own if not frame.file.startswith("<")]
        others = [frame for frame in self.frames if not _OF_TORCH.search(frame.file.replace("\\", "/"))]
        return next((frames[-1] for frames in (files, own, others, self.frames) if frames), None)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, reported by its launcher: an exit code, negative for a signal as in torchrun's summary.

    `by` is the launcher that reported it. `is_first` marks torchrun's root cause, which is correct for its node only.
    """

    source: int
    number: int
    code: int
    who: Who = field(default_factory=Who)
    by: str = "torchrun"
    time: str | None = None
    is_first: bool = False


class EventKind(str, Enum):
    """The kinds of relevant output."""

    EXCEPTION = "exception"
    EXIT = "exit"
    FAILURE = "failure"
    """A line that reports a failure of the process or the job, without an exception."""
    PEER_LOST = "peer lost"
    CAUGHT = "caught"
    """A message of code that caught an error and continued."""
    FINISHED = "finished"
    GROUP_FINISHED = "group finished"
    """A launcher reports that its workers finished."""
    PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One relevant message of a process. `is_fatal`: the log does not show that the process continued after it."""

    kind: EventKind
    printed: LogLine | Traceback | Exit
    is_fatal: bool = False


class ProcessOutcome(str, Enum):
    """How a process ended, as far as the log shows."""

    DONE = "done"
    FAILED = "failed"
    RECOVERED = "recovered"
    """It printed an error and continued."""
    CUT_OFF = "cut off"
    """Its output ends while it works, or when its launcher ended it."""
    UNKNOWN = "unknown"


class JobOutcome(str, Enum):
    """How the job ended, as far as the log shows."""

    FAILED = "failed"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    """A user ended it with SIGINT (Ctrl-C) before anything had failed."""
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LogProcess:
    """A process of the log, or all output of a source that names no process.

    `who` comes from its first line; `pid` is None where the rank or the local rank identifies the process. `events` are in
    the order of the source. `speaks`: it printed something itself; otherwise only its launcher named it.
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
        """The events that explain why it failed, in order; empty if it did not."""
        return tuple(event for event in self.events if event.is_fatal)


@dataclass(frozen=True, slots=True)
class GpuAddress:
    """The GPU of a host at a bus id without function (`0000:3b:00`), by NVML's index."""

    host: str | None
    bus_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Log(Section):
    """Everything that was read. `world_size` comes from the lines, None when no line has it.

    `heads` and `tails` are the first and the last lines of each source that hold text, whether they matter or not; `marks`
    are the lines that distinguish jobs.
    """

    sources: tuple[LogSource, ...] = ()
    lines: tuple[LogLine, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    unfinished: tuple[Traceback, ...] = ()
    """Tracebacks whose end, with the exception, is missing from the log."""
    exits: tuple[Exit, ...] = ()
    heads: tuple[LogLine, ...] = ()
    tails: tuple[LogLine, ...] = ()
    marks: tuple[JobMark, ...] = ()
    xids: tuple[Xid, ...] = ()
    """Kernel messages about GPUs and NVSwitches, each with its source and line."""
    seats: tuple[GpuAddress, ...] = ()
    """From collected facts among the inputs; addresses from NCCL's lines are not included."""
    world_size: int | None = None
    gaps: tuple[Gap, ...] = ()

    def __hash__(self) -> int:
        """Cheap, because results about a whole log are cached by it."""
        return hash((len(self.sources), len(self.lines), len(self.tracebacks), len(self.exits), len(self.tails)))

    @property
    def spoken(self) -> tuple[LogLine | Traceback | Exit, ...]:
        """All lines, tracebacks and exits."""
        return (*self.lines, *self.tracebacks, *self.exits)

    def place(self, source: int, number: int) -> str:
        """`name:number`, as editors and grep write a place in a file."""
        return f"{self.sources[source].name}:{number}"
