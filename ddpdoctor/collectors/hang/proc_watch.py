"""Reads a rank and its child processes from /proc twice, some time apart, without stopping anything."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence

from ddpdoctor.collectors.environ import relevant
from ddpdoctor.collectors.hang.rank_processes import SECONDS, ProcEntry
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.hang import ChildProcess, RankProcess
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.system.machine import Root
from ddpdoctor.system.timeouts import call_each_with_timeout

__all__ = ["ProcSnapshot", "runs_gloo", "watch"]

MOST_CHILDREN = 64
MOST_WORDS = 64
_NUMBERS = {
    "x86_64": (
        "0 read 1 write 7 poll 17 pread64 18 pwrite64 23 select 34 pause 35 nanosleep 42 connect 45 recvfrom 47 recvmsg"
        " 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync 128 rt_sigtimedwait 130 rt_sigsuspend 202 futex"
        " 230 clock_nanosleep 232 epoll_wait 247 waitid 257 openat 262 newfstatat"
        " 270 pselect6 271 ppoll 281 epoll_pwait 288 accept4 332 statx"
    ),
    "aarch64": (
        "22 epoll_pwait 25 fcntl 32 flock 56 openat 63 read 64 write 67 pread64 68 pwrite64 72 pselect6 73 ppoll 79 newfstatat"
        " 82 fsync 83 fdatasync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep"
        " 133 rt_sigsuspend 137 rt_sigtimedwait 203 connect 207 recvfrom 212 recvmsg"
        " 242 accept4 260 wait4 291 statx"
    ),
}
"""The system calls in which a rank may be stuck, by architecture and number."""
_GLOO_THREAD = "pt_gloo_runloop"
MOST_THREADS = 4096
_OF_A_FILE = ("read", "write", "pread64", "pwrite64", "fsync", "fdatasync", "flock", "fcntl")
_STANDARD = ("standard input", "standard output", "standard error")


class ProcSnapshot:
    """The state of one process at one moment: values that change while it makes progress."""

    def __init__(self, root: Root, pid: int) -> None:
        fields = (root.line(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        self.state = fields[0] if fields else "X"
        self.ticks = int(fields[11]) + int(fields[12]) if len(fields) > 12 else None
        status = root.line(f"/proc/{pid}/status") or ""
        self.switches = _field(status, "voluntary_ctxt_switches")
        self.tracer = _field(status, "TracerPid")
        self.memory = _field(status, "VmRSS")
        self.at = time.monotonic()


def watch(
    root: Root,
    ranks: Sequence[tuple[ProcEntry, Environ]],
    known: Mapping[int, ProcEntry],
    seconds: float,
    host: str,
) -> tuple[RankProcess, ...]:
    """The processes of these ranks, watched for `seconds`."""
    before = {entry.pid: ProcSnapshot(root, entry.pid) for entry, _ in ranks}
    time.sleep(seconds if ranks else 0.0)
    by_pid = {entry.pid: (entry, environ) for entry, environ in ranks}
    answered, late = call_each_with_timeout(
        lambda pid: _process(root, *by_pid[pid], known, before[pid], host), by_pid, SECONDS
    )
    silent = {pid: RankProcess(pid, host, state=before[pid].state, job=_job(by_pid[pid][1])) for pid in late}
    return tuple({**answered, **silent}[pid] for pid in by_pid)


def _process(
    root: Root, entry: ProcEntry, environ: Environ, known: Mapping[int, ProcEntry], before: ProcSnapshot, host: str
) -> RankProcess:
    now = ProcSnapshot(root, entry.pid)
    call, file = _call(root, entry.pid)
    passed = max(now.at - before.at, 0.001)
    has_ticks = now.ticks is not None and before.ticks is not None  # one that has ended has none
    used = (now.ticks or 0) - (before.ticks or 0) if has_ticks else None
    switches = None if now.switches is None or before.switches is None else now.switches - before.switches
    return RankProcess(
        pid=entry.pid,
        host=host,
        rank=environ.rank,
        local_rank=environ.local_rank,
        node_rank=environ.node_rank,
        world_size=environ.world_size,
        local_world_size=environ.local_world_size,
        job=_job(environ),
        command=" ".join(redact(list(entry.words[:MOST_WORDS])))[:1000],
        state=now.state,
        wchan=_kernel_word(root.line(f"/proc/{entry.pid}/wchan")),
        call=call,
        file=file,
        kernel_stack=_kernel_stack(root, entry.pid),
        cpu_share=None if used is None else round(used / os.sysconf("SC_CLK_TCK") / passed, 2),
        switches=switches,
        runs_gloo=runs_gloo(root, entry.pid),
        traced_by=now.tracer or None,
        oom_kills=_oom_kills(root, entry.pid),
        memory_bytes=None if now.memory is None else now.memory << 10,
        children=tuple(_child(root, child, entry) for child in _children(entry.pid, known)),
        variables=relevant(environ.variables),
    )


def _children(pid: int, known: Mapping[int, ProcEntry]) -> list[ProcEntry]:
    """All descendants of a process, nearest first."""
    children: list[ProcEntry] = []
    level = {pid}
    while level and len(children) < MOST_CHILDREN:
        below = [entry for entry in known.values() if entry.parent in level and not entry.is_own]
        children += below
        level = {entry.pid for entry in below}
    return children[:MOST_CHILDREN]


def _child(root: Root, entry: ProcEntry, rank: ProcEntry) -> ChildProcess:
    state = ((root.line(f"/proc/{entry.pid}/stat") or "").rpartition(")")[2].split() or [""])[0]
    is_copy = entry.words == rank.words or any("multiprocessing" in word for word in entry.words)
    wchan = _kernel_word(root.line(f"/proc/{entry.pid}/wchan"))
    return ChildProcess(
        entry.pid, entry.name, state, wchan, is_copy and not any("resource_tracker" in w for w in entry.words)
    )


def _call(root: Root, pid: int) -> tuple[str, str | None]:
    """The system call that the main thread waits in, and its file; "" while it runs, or if it cannot be read."""
    words = (root.line(f"/proc/{pid}/syscall") or "").split()
    name = _table().get(words[0], "") if words else ""
    if name not in _OF_A_FILE or len(words) < 2:
        return name, None
    try:
        number = int(words[1], 16)
        path = os.readlink(root.at(f"/proc/{pid}/fd/{number}"))
    except (OSError, ValueError):
        return name, None
    return name, f"{_STANDARD[number]} ({path})" if number < len(_STANDARD) else path


def runs_gloo(root: Root, pid: int) -> bool | None:
    """Whether a Gloo thread is in a collective: it waits for its peers with a timeout, but for work without one."""
    task = f"/proc/{pid}/task"
    threads = [name for name in root.names(task)[:MOST_THREADS] if root.line(f"{task}/{name}/comm") == _GLOO_THREAD]
    calls = [(root.line(f"{task}/{name}/syscall") or "").split() for name in threads]
    if not calls or not all(calls):
        return None
    futex = next((number for number, name in _table().items() if name == "futex"), None)
    if futex is None:
        return None
    return any(words[0] != futex or int(words[4], 16) != 0 for words in calls)


def _table() -> dict[str, str]:
    return dict(zip(*[iter(_NUMBERS.get(platform.machine(), "").split())] * 2, strict=True))


def _kernel_word(text: str | None) -> str:
    return "" if text in (None, "0") else str(text)[:100]


def _kernel_stack(root: Root, pid: int) -> tuple[str, ...]:
    lines = (root.line(f"/proc/{pid}/stack") or "").splitlines()[:16]
    return tuple(re.sub(r"^\[<[0-9a-f]*>\] |\+0x.*", "", line) for line in lines)


def _oom_kills(root: Root, pid: int) -> int | None:
    """How many processes of the rank's cgroup were OOM-killed."""
    groups = (root.line(f"/proc/{pid}/cgroup") or "").splitlines()
    path = next((line.partition("::")[2] for line in groups if line.startswith("0::")), None)
    events = None if path is None else root.line(f"/sys/fs/cgroup{path}/memory.events")
    return None if events is None else _field(events.replace(" ", ": "), "oom_kill")


def _job(environ: Environ) -> str:
    """The job's identity: settings that its ranks share and other jobs do not."""
    settings = [
        environ.get(name)
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")
    ]
    return " ".join(setting for setting in settings if setting and setting != "none")


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None
