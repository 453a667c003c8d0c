"""Names and owners of the processes that NVML lists on a GPU."""

from __future__ import annotations

import os
import pwd
from typing import Any

from ddpdoctor.system.machine import Machine

__all__ = ["describe"]

JOB = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
"""Variables that all ranks of one job share."""


def describe(machine: Machine, pid: int) -> dict[str, Any]:
    """Name and owner of a process, and whether it is ours; {} if it is not visible: in a container, NVML reports host pids."""
    command = machine.root.line(f"/proc/{pid}/comm")
    if not command:
        return {}
    ours = machine.once("ancestors", lambda: _ancestors(machine))
    return {"command": command, "user": _user(machine, pid), "is_ours": pid in ours or _is_of_our_job(machine, pid)}


def _ancestors(machine: Machine) -> frozenset[int]:
    ancestors, pid = set(), os.getpid() if machine.root.is_real else 0
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        pid = _parent(machine, pid)
    return frozenset(ancestors)


def _parent(machine: Machine, pid: int) -> int:
    """The fourth word of /proc/PID/stat; the second is a name in brackets that may contain any character. 0 if unreadable."""
    words = (machine.root.line(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _is_of_our_job(machine: Machine, pid: int) -> bool:
    ours = {f"{name}={machine.environ[name]}" for name in JOB if machine.environ.get(name)}
    if not ours:
        return False
    theirs = machine.root.line(f"/proc/{pid}/environ")
    return bool(ours & set((theirs or "").split("\0")))


def _user(machine: Machine, pid: int) -> str | None:
    try:
        owner = os.stat(machine.root.at(f"/proc/{pid}")).st_uid
    except OSError:
        return None  # it has just ended
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
