"""Additional facts for a bug report: the kernel's last warnings, the list of log files, the launch line."""

from __future__ import annotations

import glob
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.collectors.hang.rank_processes import ProcEntry, processes
from ddpdoctor.collectors.kernel_log import LOG, read_warnings
from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.log import InputKind, Log, LogLine, LogSource, Who
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

__all__ = ["collect_launch_of", "collect_logs"]

FILE_SECONDS = 3.0
"""Logs may be on file systems that do not respond."""
MOST_FILES = 200
RECENT_SECONDS = 14 * 86400.0
NAMED_BY = (
    "TORCHELASTIC_LOG_DIR",
    "PET_LOG_DIR",
    "TORCHELASTIC_ERROR_FILE",
    "NCCL_DEBUG_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)
"""Variables with the location of a job's logs and dumps: a folder, a file, or the prefix of its name."""
USUAL = (
    "slurm-*.out",
    "*.log",
    "*.err",
    "logs/*",
    "log/*",
    "wandb/debug*.log",
    "/tmp/nccl_trace_rank_*",
    "/tmp/torchelastic_*",
)
"""Other usual places of logs; folders that jobs share come last."""
_SCHEDULED = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def collect_logs(machine: Machine) -> Log:
    """The kernel's last warnings as lines, and the log files by name and size, without their content."""
    gaps: list[Gap] = []
    lines: tuple[LogLine, ...] = ()
    who = Who(host=socket.gethostname().partition(".")[0])
    try:
        lines = tuple(LogLine(0, number, text, who) for number, text in enumerate(read_warnings(machine), 1))
    except PermissionError:
        gaps.append(Gap("log.kernel", "needs root", Why.NEEDS_ROOT))
    except OSError as error:
        gaps.append(Gap("log.kernel", f"{LOG}: {error.strerror}", Why.NOT_HERE))
    files: dict[str, LogSource] = {}
    try:
        call_with_timeout(lambda: _list(machine, files), min(FILE_SECONDS, machine.deadline.left))
    except CallTimeout as late:
        gaps.append(Gap("log.files", f"listing the log files: {late}"))
    kernel = LogSource(LOG, InputKind.KERNEL, lines=len(lines), who=who)
    return Log(sources=(kernel, *list(files.values())[:MOST_FILES]), lines=lines, gaps=tuple(gaps))


def collect_launch_of(machine: Machine, pids: Iterable[int]) -> Launch | None:
    """The command line of the launcher of these processes, None if none has one."""
    known = processes(machine.root)
    for pid in pids:
        agent = _launcher(known, pid)
        if agent is not None:
            words = [str(word) for word in redact(list(_without_python(agent.words)))]
            try:
                folder = os.readlink(machine.root.at(f"/proc/{agent.pid}/cwd"))
            except OSError:
                folder = "/"
            return collect_launch(replace(machine, environ={}), words, cwd=folder)
    return None


def _launcher(known: dict[int, ProcEntry], pid: int) -> ProcEntry | None:
    """The outermost launcher among the ancestors of a process."""
    outermost = None
    while pid in known:
        entry = known[pid]
        words = entry.words[:4]
        if any(os.path.basename(word) in _SCHEDULED or word in _MODULES for word in words):
            outermost = entry
        pid = entry.parent
    return outermost


def _without_python(words: Sequence[str]) -> Sequence[str]:
    """The words from the launcher on: /proc shows `torchrun …` as `python /venv/bin/torchrun …`."""
    at = next((i for i, word in enumerate(words[:3]) if os.path.basename(word) in _SCHEDULED), 0)
    return (os.path.basename(words[at]), *words[at + 1 :]) if at else words


def _list(machine: Machine, found: dict[str, LogSource]) -> None:
    """Add the log files of this job and of this folder to `found`, by name, so that a timeout keeps those found so far."""
    for descriptor in (1, 2):
        path = os.readlink(f"/proc/self/fd/{descriptor}") if os.path.exists(f"/proc/self/fd/{descriptor}") else ""
        if os.path.isfile(path):
            found.setdefault(path, LogSource(path, size_bytes=os.path.getsize(path)))
    patterns = [f"{value}*" for name in NAMED_BY if (value := machine.environ.get(name))] + list(USUAL)
    for pattern in patterns:
        for path in sorted(glob.iglob(pattern)):
            for each in _below(path):
                source = _source(each)
                if source is not None:
                    found.setdefault(source.name, source)
                if len(found) >= MOST_FILES:
                    return


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in sorted(names)[:MOST_FILES])


def _source(path: str) -> LogSource | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if time.time() - status.st_mtime > RECENT_SECONDS:
        return None
    return LogSource(os.path.abspath(path), size_bytes=status.st_size)
