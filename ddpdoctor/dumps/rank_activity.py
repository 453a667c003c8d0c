"""What a rank is doing: from its stack where there is one, else from what /proc says of its main thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from ddpdoctor.dumps.file_names import is_own_code
from ddpdoctor.facts.hang import ChildProcess, RankProcess, StackFrame
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Activity", "RankActivity", "activity_of", "activity_of_stack", "own_frame"]

BUSY = 0.5
"""Of a processor: what a rank takes that computes, and one that waits does not."""

MOST_SWITCHES = 2
"""So often a thread that does not move may have woken up while it was watched: a data loader polls every five seconds."""


class Activity(str, Enum):
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
    Activity.GONE: "has ended and was not reaped",
    Activity.STOPPED: "is stopped (state T)",
    Activity.TRACED: "is stopped by a debugger (state t)",
    Activity.KERNEL: "is blocked in an uninterruptible kernel call (state D)",
    Activity.COLLECTIVE: "waits for its peers in a collective",
    Activity.DATA: "waits for its data loader",
    Activity.COMPILING: "compiles",
    Activity.BUILD_LOCK: "waits for the lock of an extension build",
    Activity.CHECKPOINT: "reads or writes a checkpoint",
    Activity.INPUT: "reads from standard input",
    Activity.CHILD: "waits for a process that it started",
    Activity.LOCK: "waits for a file lock",
    Activity.FILE: "waits in a file operation",
    Activity.SLEEPING: "sleeps",
    Activity.NETWORK: "waits for the network",
    Activity.COMPUTING: "computes",
    Activity.WAITING: "waits",
    Activity.UNKNOWN: "is at an unknown place",
}

FRAMES: tuple[tuple[str, Activity], ...] = (
    (r"torch/utils/file_baton\.py$", Activity.BUILD_LOCK),
    (
        r"torch/(_inductor|_dynamo|_functorch)/|torch/utils/cpp_extension\.py$|/triton/(compiler|runtime)/",
        Activity.COMPILING,
    ),
    (r"torch/utils/data/|torch/_utils/|/webdataset/|/datasets/iterable", Activity.DATA),
    (r"torch/distributed/checkpoint/|torch/serialization\.py$|safetensors", Activity.CHECKPOINT),
    (r"torch/(distributed|nn/parallel)/", Activity.COLLECTIVE),
    (r"(^|/)(pdb|bdb|cmd|code)\.py$|/IPython/|/ipdb/", Activity.INPUT),
    (r"(^|/)subprocess\.py$", Activity.CHILD),
    (r"(^|/)(socket|ssl|urllib/request|http/client)\.py$|/(urllib3|requests|botocore|aiohttp)/", Activity.NETWORK),
)
"""What a rank does, by the file of the innermost of these frames."""

CALLS = {
    "wait4": Activity.CHILD,
    "waitid": Activity.CHILD,
    "flock": Activity.LOCK,
    "fcntl": Activity.LOCK,
    "read": Activity.FILE,
    "pread64": Activity.FILE,
    "write": Activity.FILE,
    "pwrite64": Activity.FILE,
    "openat": Activity.FILE,
    "fsync": Activity.FILE,
    "fdatasync": Activity.FILE,
    "statx": Activity.FILE,
    "newfstatat": Activity.FILE,
    "nanosleep": Activity.SLEEPING,
    "clock_nanosleep": Activity.SLEEPING,
    "recvfrom": Activity.NETWORK,
    "recvmsg": Activity.NETWORK,
    "connect": Activity.NETWORK,
    "accept4": Activity.NETWORK,
}
SLEEPERS = {
    "hrtimer_nanosleep": Activity.SLEEPING,
    "do_wait": Activity.CHILD,
    "pipe_read": Activity.FILE,
    "n_tty_read": Activity.INPUT,
}
"""Kernel functions, where the system call may not be read."""
COMPILERS = re.compile(
    r"^(ninja|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|gcc|g\+\+|cc1|cc1plus|clang(\+\+)?|ld|as|hipcc|triton)(-[\d.]+)?$"
)
POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
TELLING = tuple((re.compile(pattern), activity) for pattern, activity in FRAMES)


@dataclass(frozen=True, slots=True)
class RankActivity:
    """What one rank does, in words that follow its name, and where in the user's code."""

    process: RankProcess
    activity: Activity
    words: str
    frame: StackFrame | None = None

    @property
    def may_be_for_others(self) -> bool:
        """It may wait for other ranks: no stack shows that it waits for something else."""
        return self.activity is Activity.COLLECTIVE or (
            self.activity in (Activity.WAITING, Activity.NETWORK) and not self.process.frames
        )

    @property
    def is_still(self) -> bool:
        """Its main thread did not move while it was watched."""
        return (self.process.switches or 0) <= MOST_SWITCHES and (self.process.cpu_share or 0.0) < BUSY


def own_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame of the user's own code."""
    return next((frame for frame in frames if is_own_code(frame.file)), None)


def activity_of_stack(frames: Sequence[StackFrame]) -> Activity | None:
    """What a stack says that its thread does; None when it is in nothing but the user's own code.

    Where it waits for a child process, an outer frame that says what the child is for decides.
    """
    waits_for_child = None
    for frame in frames:
        if is_own_code(frame.file):
            break
        activity = next((activity for pattern, activity in TELLING if pattern.search(frame.file)), None)
        if activity is Activity.CHILD:
            waits_for_child = activity
        elif activity is not None:
            return activity
    return waits_for_child


def activity_of(process: RankProcess) -> RankActivity:
    """What a rank is doing."""
    activity = _state(process) or activity_of_stack(process.frames) or _in_gloo(process) or _call(process)
    if activity is Activity.CHILD and _compiles(process):
        activity = Activity.COMPILING
    frame = own_frame(process.frames)
    words = WORDS[activity]
    if activity is Activity.KERNEL and process.wchan:
        words += f": {process.wchan}"
    if activity is Activity.TRACED and process.traced_by:
        words += f", pid {process.traced_by}"
    if activity in (Activity.FILE, Activity.LOCK, Activity.KERNEL) and process.file:
        words += f", {process.call} of {process.file}"
    if activity is Activity.DATA:
        words, frame = _data(process, words, frame)
    if activity in (Activity.CHILD, Activity.COMPILING):
        names = [f"{child.name} (pid {child.pid})" for child in process.children][:3]
        words += f": {', '.join(names)}" if names else ""
    if frame is not None:
        words += f" at {frame}"
    return RankActivity(process, activity, words, frame)


def _state(process: RankProcess) -> Activity | None:
    return {
        "Z": Activity.GONE,
        "X": Activity.GONE,
        "T": Activity.STOPPED,
        "t": Activity.TRACED,
        "D": Activity.KERNEL,
    }.get(process.state)


def _in_gloo(process: RankProcess) -> Activity | None:
    """A main thread that waits for another thread, while one of Gloo's is in a collective; its child processes show more."""
    waits = process.call == "futex" and not process.frames and not process.children
    return Activity.COLLECTIVE if waits and process.runs_gloo else None


def _call(process: RankProcess) -> Activity:
    if _compiles(process):
        return Activity.COMPILING
    if process.call == "read" and process.file is not None and process.file.startswith(("standard input", "/dev/tty")):
        return Activity.INPUT
    known = CALLS.get(process.call) or SLEEPERS.get(process.wchan)
    if known is not None:
        return known
    if process.state == "R" or (process.cpu_share or 0.0) > BUSY:
        return Activity.COMPUTING
    if process.call in POLLS or process.wchan in ("do_sys_poll", "ep_poll", "do_select"):
        return Activity.DATA if any(child.is_copy for child in process.children) else Activity.NETWORK
    return Activity.WAITING if process.state else Activity.UNKNOWN


def _compiles(process: RankProcess) -> bool:
    return any(COMPILERS.match(child.name) for child in process.children)


def _data(process: RankProcess, words: str, frame: StackFrame | None) -> tuple[str, StackFrame | None]:
    """What the worker does that the rank waits for: the place to look at."""
    for child in process.children:
        found = own_frame(child.frames)
        if found is not None:
            return f"{words}, whose worker (pid {child.pid}) is", found
    stuck: ChildProcess | None = next((c for c in process.children if c.state in "DTtZ"), None)
    if stuck is not None:
        return f"{words}, whose worker (pid {stuck.pid}) is in state {stuck.state}", frame
    return words, frame
