"""Process states from /proc: the same for a child, another rank and a foreign process, without their cooperation."""

from __future__ import annotations

import signal

from ddpdoctor.light_dataclass import dataclass

__all__ = ["STOPPED_SECONDS", "ForeignProcess", "ProcStat", "read_stat"]

STOPPED_SECONDS = 1.3
"""How long a process may be suspended without an observation: checkpoints, debuggers and schedulers do that briefly."""


@dataclass(frozen=True)
class ProcStat:
    """`state` is the letter of /proc/PID/stat; `ticks` is CPU time in clock ticks, `faults` are page faults;
    `started` distinguishes processes with the same pid.
    """

    state: str
    ticks: int
    faults: int
    started: int


def read_stat(pid: int) -> ProcStat | None:
    """The process's state, None if there is no process with that pid.

    Raises:
        OSError: out of file descriptors.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    numbers = [int(field) for field in fields[7:20]]
    return ProcStat(fields[0].decode(), numbers[4] + numbers[5], numbers[0] + numbers[2], numbers[12])


class ForeignProcess:
    """Another process's child with the interface of a Popen: it is neither killed nor reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._born = read_stat(pid)

    def poll(self) -> int | None:
        """None while it runs. Its exit code is only known to its parent, so an unreported end counts as SIGKILL."""
        now = read_stat(self.pid)
        is_same = now is not None and self._born is not None and now.started == self._born.started
        return None if is_same and now is not None and now.state != "Z" else -signal.SIGKILL

    def kill(self) -> None:
        """Done by its parent."""
