"""Collects `hang` on a node where a job is stuck now: its ranks, their stacks, and the dumps that they wrote."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.collectors.hang.dumps import read_dumps
from ddpdoctor.collectors.hang.proc_watch import watch
from ddpdoctor.collectors.hang.pyspy import find_pyspy, frames_of
from ddpdoctor.collectors.hang.rank_processes import find, processes
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.hang import Dump, Hang, RankProcess
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import Machine

__all__ = ["HangRequest", "collect_hang"]

DUMP_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_PREFIX = "/tmp/nccl_trace_rank_"
STACK_SECONDS = 5.0
DUMP_SECONDS = 5.0
CLOCK_SECONDS = 0.1
"""File times may be one kernel tick older than the clock."""


@dataclass(frozen=True, slots=True)
class HangRequest:
    """What to examine: `pids` and their descendants (none: all ranks of this node), for `seconds`, with py-spy or without."""

    pids: tuple[int, ...] = ()
    seconds: float = 2.0
    stacks: bool = True
    with_own: bool = False
    dumps: bool = False
    """Request a Flight Recorder dump, if the job has a pipe for such requests."""


def collect_hang(machine: Machine, wanted: HangRequest) -> Hang:
    """The ranks of this node. Nothing is stopped, signalled or attached to; py-spy reads memory (--nonblocking)."""
    root = machine.root
    known = processes(root)
    found = find(root, known, wanted.pids, with_own=wanted.with_own)
    gaps = []
    if found.unreadable:
        reason = f"needs root ({found.unreadable} Python processes of other users)"
        gaps.append(Gap("hang.processes", reason, Why.NEEDS_ROOT))
    host = socket.gethostname().partition(".")[0]
    seen = watch(root, found.ranks, known, min(wanted.seconds, machine.deadline.left / 2), host)
    if wanted.dumps:
        _ask_for_dumps(machine, seen)
    dumps = _dumps(machine, seen)
    if wanted.stacks and seen:
        seen, more = _with_stacks(machine, seen, " ".join(map(str, ("ddpdoctor hang", *wanted.pids))))
        gaps += more
    return Hang(dumps=dumps, processes=seen, seconds=wanted.seconds, not_ranks=found.not_ranks, gaps=tuple(gaps))


def _with_stacks(
    machine: Machine, seen: Sequence[RankProcess], again: str
) -> tuple[tuple[RankProcess, ...], list[Gap]]:
    """The ranks and their forked children (data loader workers), with stacks from py-spy; `again` is the command that reads
    them again.
    """
    program = find_pyspy(machine.environ)
    if program is None:
        reason = f"py-spy is not installed; to see the line of each rank: pip install py-spy && {again}"
        return tuple(seen), [Gap("hang.stacks", reason, Why.NOT_HERE)]
    pids = [p.pid for p in seen if p.state != "Z"] + [c.pid for p in seen for c in p.children if c.is_copy]
    frames, problems = frames_of(program, pids, min(STACK_SECONDS, max(machine.deadline.left, 0.1)))
    complete = tuple(
        replace(
            process,
            frames=frames.get(process.pid, ()),
            children=tuple(replace(child, frames=frames.get(child.pid, ())) for child in process.children),
        )
        for process in seen
    )
    as_root = "" if os.geteuid() == 0 else f'; as root: sudo env "PATH=$PATH" {again}'
    return complete, [Gap("hang.stacks", f"py-spy: {problem}{as_root}", Why.NEEDS_ROOT) for problem in problems[:3]]


def _ask_for_dumps(machine: Machine, seen: Iterable[RankProcess]) -> None:
    """Request dumps through the pipes of TORCH_NCCL_DEBUG_INFO_PIPE_FILE: torch's monitor thread writes them while the job
    continues. Pipes without a reader are skipped. Waits until the files exist, or a few seconds.

    Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (DumpPipe).
    """
    requested: dict[str, float] = {}
    for process in seen:
        prefix = process.variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
        path = _dump_path(process)
        if prefix and path is not None and _request_dump(f"{prefix}{process.rank}.pipe"):
            requested[path] = time.time()
    end = machine.deadline.cut(DUMP_SECONDS)
    while end.left and any(_written(path) < moment - CLOCK_SECONDS for path, moment in requested.items()):
        time.sleep(0.1)


def _request_dump(pipe: str) -> bool:
    try:
        link = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # no pipe, or no reader
    try:
        return stat.S_ISFIFO(os.fstat(link).st_mode) and os.write(link, b"1\n") > 0
    except OSError:
        return False  # full: an earlier request was not read
    finally:
        os.close(link)


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _dump_path(process: RankProcess) -> str | None:
    """The path of a rank's Flight Recorder dump."""
    names = (process.variables.get(name) for name in DUMP_PREFIXES)
    prefix = next((name for name in names if name), DEFAULT_PREFIX)
    return None if process.rank is None else f"{prefix}{process.rank}"


def _dumps(machine: Machine, seen: Iterable[RankProcess]) -> tuple[Dump, ...]:
    """The dumps that these ranks have written since they were started."""
    paths = [path for rank in seen if (path := _dump_path(rank)) and _is_of(machine, path, rank.pid)]
    return read_dumps(paths, max(machine.deadline.left, 0.1)) if paths else ()


def _is_of(machine: Machine, path: str, pid: int) -> bool:
    """Whether a file is newer than the process: an older one is an earlier job's."""
    try:
        return os.stat(path).st_mtime >= os.stat(machine.root.at(f"/proc/{pid}")).st_ctime
    except OSError:
        return False
