"""What a rank is doing: from its stack where there is one, else from what /proc says of its main thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ddpdoctor.dumps.file_names import is_own_code
from ddpdoctor.facts.hang import Child, Frame, Process

__all__ = ["Doing", "Situation", "of_frames", "own_frame", "situation"]

BUSY = 0.5
"""Of a processor: what a rank takes that computes, and one that waits does not."""

MOST_SWITCHES = 2
"""So often a thread that stands still may have woken up while it was watched: a data loader looks every five seconds."""


class Doing(str, Enum):
    """What a rank does, or waits for."""

    GONE = "gone"
    STOPPED = "stopped"
    TRACED = "traced"
    KERNEL = "kernel"
    COLLECTIVE = "collective"
    DATA = "data"
    COMPILING = "compiling"
    BUILD_LOCK = "build_lock"
    CHECKPOINT = "checkpoint"
    INPUT = "input"
    CHILD = "child"
    LOCK = "lock"
    FILE = "file"
    SLEEPING = "sleeping"
    NETWORK = "network"
    COMPUTING = "computing"
    WAITING = "waiting"
    UNKNOWN = "unknown"


WORDS = {
    Doing.GONE: "has ended and was not reaped",
    Doing.STOPPED: "is stopped (state T)",
    Doing.TRACED: "is held by a debugger (state t)",
    Doing.KERNEL: "sits in an uninterruptible kernel call (state D)",
    Doing.COLLECTIVE: "waits for its peers in a collective",
    Doing.DATA: "waits for its data loader",
    Doing.COMPILING: "compiles",
    Doing.BUILD_LOCK: "waits for the lock of an extension build",
    Doing.CHECKPOINT: "reads or writes a checkpoint",
    Doing.INPUT: "reads from standard input",
    Doing.CHILD: "waits for a process that it started",
    Doing.LOCK: "waits for a file lock",
    Doing.FILE: "waits in a file operation",
    Doing.SLEEPING: "sleeps",
    Doing.NETWORK: "waits for the network",
    Doing.COMPUTING: "computes",
    Doing.WAITING: "waits",
    Doing.UNKNOWN: "is somewhere that could not be seen",
}

FRAMES: tuple[tuple[str, Doing], ...] = (
    (r"torch/utils/file_baton\.py$", Doing.BUILD_LOCK),
    (
        r"torch/(_inductor|_dynamo|_functorch)/|torch/utils/cpp_extension\.py$|/triton/(compiler|runtime)/",
        Doing.COMPILING,
    ),
    (r"torch/utils/data/|torch/_utils/|/webdataset/|/datasets/iterable", Doing.DATA),
    (r"torch/distributed/checkpoint/|torch/serialization\.py$|safetensors", Doing.CHECKPOINT),
    (r"torch/(distributed|nn/parallel)/", Doing.COLLECTIVE),
    (r"(^|/)(pdb|bdb|cmd|code)\.py$|/IPython/|/ipdb/", Doing.INPUT),
    (r"(^|/)subprocess\.py$", Doing.CHILD),
    (r"(^|/)(socket|ssl|urllib/request|http/client)\.py$|/(urllib3|requests|botocore|aiohttp)/", Doing.NETWORK),
)
"""Files whose frames tell what a rank does, by the innermost one that is here."""

CALLS = {
    "wait4": Doing.CHILD,
    "waitid": Doing.CHILD,
    "flock": Doing.LOCK,
    "fcntl": Doing.LOCK,
    "read": Doing.FILE,
    "pread64": Doing.FILE,
    "write": Doing.FILE,
    "pwrite64": Doing.FILE,
    "openat": Doing.FILE,
    "fsync": Doing.FILE,
    "fdatasync": Doing.FILE,
    "statx": Doing.FILE,
    "newfstatat": Doing.FILE,
    "nanosleep": Doing.SLEEPING,
    "clock_nanosleep": Doing.SLEEPING,
    "recvfrom": Doing.NETWORK,
    "recvmsg": Doing.NETWORK,
    "connect": Doing.NETWORK,
    "accept4": Doing.NETWORK,
}
SLEEPERS = {
    "hrtimer_nanosleep": Doing.SLEEPING,
    "do_wait": Doing.CHILD,
    "pipe_read": Doing.FILE,
    "n_tty_read": Doing.INPUT,
}
"""Kernel functions, where the system call may not be read."""
COMPILERS = re.compile(
    r"^(ninja|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|gcc|g\+\+|cc1|cc1plus|clang(\+\+)?|ld|as|hipcc|triton)(-[\d.]+)?$"
)
POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
TELLING = tuple((re.compile(pattern), doing) for pattern, doing in FRAMES)


@dataclass(frozen=True, slots=True)
class Situation:
    """What one rank does, in words that follow its name, and where in the user's code."""

    process: Process
    doing: Doing
    words: str
    frame: Frame | None = None

    @property
    def may_be_for_others(self) -> bool:
        """It may wait for other ranks: no stack shows that it waits for something else."""
        return self.doing is Doing.COLLECTIVE or (
            self.doing in (Doing.WAITING, Doing.NETWORK) and not self.process.frames
        )

    @property
    def is_still(self) -> bool:
        """Its main thread did not move while it was watched."""
        return (self.process.switches or 0) <= MOST_SWITCHES and (self.process.cpu_share or 0.0) < BUSY


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code."""
    return next((frame for frame in frames if is_own_code(frame.file)), None)


def of_frames(frames: Sequence[Frame]) -> Doing | None:
    """What a stack says that its thread does; None when it is in nothing but the user's own code.

    Of a process that was started it tells more what it was started for.
    """
    waits_for_child = None
    for frame in frames:
        if is_own_code(frame.file):
            break
        doing = next((doing for pattern, doing in TELLING if pattern.search(frame.file)), None)
        if doing is Doing.CHILD:
            waits_for_child = doing
        elif doing is not None:
            return doing
    return waits_for_child


def situation(process: Process) -> Situation:
    """What a rank is doing."""
    doing = _state(process) or of_frames(process.frames) or _in_gloo(process) or _call(process)
    if doing is Doing.CHILD and _compiles(process):
        doing = Doing.COMPILING
    frame = own_frame(process.frames)
    words = WORDS[doing]
    if doing is Doing.KERNEL and process.wchan:
        words += f": {process.wchan}"
    if doing is Doing.TRACED and process.traced_by:
        words += f", pid {process.traced_by}"
    if doing in (Doing.FILE, Doing.LOCK, Doing.KERNEL) and process.file:
        words += f", {process.call} of {process.file}"
    if doing is Doing.DATA:
        words, frame = _data(process, words, frame)
    if doing in (Doing.CHILD, Doing.COMPILING):
        names = [f"{child.name} (pid {child.pid})" for child in process.children][:3]
        words += f": {', '.join(names)}" if names else ""
    if frame is not None:
        words += f" at {frame}"
    return Situation(process, doing, words, frame)


def _state(process: Process) -> Doing | None:
    return {
        "Z": Doing.GONE,
        "X": Doing.GONE,
        "T": Doing.STOPPED,
        "t": Doing.TRACED,
        "D": Doing.KERNEL,
    }.get(process.state)


def _in_gloo(process: Process) -> Doing | None:
    """A main thread that waits for another thread, while one of Gloo's is in a collective; what it started tells more."""
    waits = process.call == "futex" and not process.frames and not process.children
    return Doing.COLLECTIVE if waits and process.runs_gloo else None


def _call(process: Process) -> Doing:
    if _compiles(process):
        return Doing.COMPILING
    if process.call == "read" and process.file is not None and process.file.startswith(("standard input", "/dev/tty")):
        return Doing.INPUT
    known = CALLS.get(process.call) or SLEEPERS.get(process.wchan)
    if known is not None:
        return known
    if process.state == "R" or (process.cpu_share or 0.0) > BUSY:
        return Doing.COMPUTING
    if process.call in POLLS or process.wchan in ("do_sys_poll", "ep_poll", "do_select"):
        return Doing.DATA if any(child.is_copy for child in process.children) else Doing.NETWORK
    return Doing.WAITING if process.state else Doing.UNKNOWN


def _compiles(process: Process) -> bool:
    return any(COMPILERS.match(child.name) for child in process.children)


def _data(process: Process, words: str, frame: Frame | None) -> tuple[str, Frame | None]:
    """What the worker does that the rank waits for: the place to look at."""
    for child in process.children:
        found = own_frame(child.frames)
        if found is not None:
            return f"{words}, whose worker (pid {child.pid}) is", found
    stuck: Child | None = next((c for c in process.children if c.state in "DTtZ"), None)
    if stuck is not None:
        return f"{words}, whose worker (pid {stuck.pid}) is in state {stuck.state}", frame
    return words, frame
