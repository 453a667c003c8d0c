"""Collects `host` from /proc, /sys and a few system calls; no process is started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ddpdoctor.collectors.cgroup import read_cgroup
from ddpdoctor.collectors.container import find_container
from ddpdoctor.collectors.folders import extension_locks, mount_of, shm_leftovers, temporary_folder
from ddpdoctor.collectors.kernel import Kernel
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.host import Host, Limits, Logind, NumaNode, count_cpus
from ddpdoctor.system.machine import Machine, Root
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

__all__ = ["collect"]

T = TypeVar("T")

PATIENCE_SECONDS = 1.0
"""How long one file system may take."""
MOST_LIKELY_BOUND = 65_536
"""Threads are not counted for a process limit above this."""
FIRST_USER = 1000
"""Lower ids are system users, whose shared memory logind keeps (SYS_UID_MAX + 1)."""
LOGIND_FILES = ("/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf")
LOGIND_FOLDERS = ("/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")
CAPTURED = "not available in a captured file tree"


class _Gaps:
    """Collects the gaps while facts are read."""

    def __init__(self) -> None:
        self.found: list[Gap] = []

    def add(self, name: str, reason: str, why: Why = Why.UNANSWERED) -> None:
        self.found.append(Gap(f"host.{name}", reason, why))

    def ask(self, name: str, work: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T | None:
        """The result of `work`, or a gap if it fails or times out."""
        try:
            return call_with_timeout(work, seconds)
        except CallTimeout as late:
            self.add(name, f"{name}: {late}")
        except OSError as error:
            self.add(name, f"{error.filename or name}: {error.strerror}")
        return None


def collect(machine: Machine, kernel: Kernel | None = None) -> Host:
    """Everything about this node except its GPUs and networks.

    Args:
        kernel: makes the system calls; by default this machine's, none for a captured tree.
    """
    root, gaps = machine.root, _Gaps()
    if kernel is None and root.is_real:
        kernel = Kernel()
    container, evidence = find_container(machine)
    is_container = Host(container=container).is_container
    cgroup = gaps.ask("cgroup", lambda: read_cgroup(root))
    if cgroup is None and not gaps.found:
        gaps.add("cgroup", "no cgroup is mounted", Why.NOT_HERE)
    facts: dict[str, Any] = {
        **_memory(root, gaps),
        **_numa(root, gaps),
        **_shm(machine, kernel, gaps, is_container),
        **(_own(machine, kernel, gaps, is_container) if kernel else _unasked(gaps)),
    }
    return Host(
        cpus_online=_cpus_online(root, gaps),
        cgroup=cgroup,
        rdma_devices=tuple(name for name in root.names("/dev/infiniband") if name.startswith("uverbs")),
        container=container,
        container_evidence=evidence,
        governor=root.line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        huge_pages=_chosen(root.line("/sys/kernel/mm/transparent_hugepage/enabled")),
        gaps=tuple(gaps.found),
        **facts,
    )


def _unasked(gaps: _Gaps) -> dict[str, Any]:
    for name in (
        "cpus_allowed",
        "limits",
        "temporary_folder",
        "extension_locks",
        "clock_is_synchronised",
        "numa_calls_allowed",
        "logind",
    ):
        gaps.add(name, CAPTURED, Why.NOT_HERE)
    return {}


def _own(machine: Machine, kernel: Kernel, gaps: _Gaps, is_container: bool) -> dict[str, Any]:
    """The results of system calls about this process."""
    user, cpus, limits = kernel.user(), kernel.cpus(), kernel.limits()
    release, architecture = kernel.release()
    return {
        "kernel": release,
        "architecture": architecture,
        "is_root": user == 0,
        "user_id": user,
        "cpus_allowed": len(cpus),
        "cpus_allowed_list": _cpu_list(cpus),
        "limits": limits,
        "user_threads": _user_threads(machine.root, user, limits),
        "temporary_folder": gaps.ask("temporary_folder", lambda: temporary_folder(machine, kernel)),
        "extension_locks": gaps.ask("extension_locks", lambda: extension_locks(machine, is_container)) or (),
        "clock_is_synchronised": _clock(machine.root, kernel, gaps),
        "numa_calls_allowed": _numa_calls(machine.root, kernel, gaps),
        "logind": _logind(machine.root, user, is_container, gaps),
    }


def _memory(root: Root, gaps: _Gaps) -> dict[str, int | None]:
    text = root.line("/proc/meminfo") or ""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    fields = {
        "memory_total_bytes": "MemTotal",
        "memory_available_bytes": "MemAvailable",
        "swap_total_bytes": "SwapTotal",
    }
    for field, name in fields.items():
        if name not in found:
            gaps.add(field, f"{name} is missing from /proc/meminfo")
    return {field: found.get(name) for field, name in fields.items()}


def _cpus_online(root: Root, gaps: _Gaps) -> int | None:
    count = count_cpus(root.line("/sys/devices/system/cpu/online") or "") or (os.cpu_count() if root.is_real else None)
    if not count:
        gaps.add("cpus_online", "/sys/devices/system/cpu/online is not readable")
    return count or None


def _numa(root: Root, gaps: _Gaps) -> dict[str, Any]:
    folder = "/sys/devices/system/node"
    indices = sorted(int(name[4:]) for name in root.names(folder) if re.fullmatch(r"node\d+", name))
    if not indices:
        is_shown = bool(root.names("/sys/devices/system")) and not root.exists(folder)
        why = Why.NOT_HERE if is_shown else Why.UNANSWERED
        gaps.add("numa_nodes", "no NUMA nodes" if is_shown else f"{folder} is not readable", why)
    balancing = root.number("/proc/sys/kernel/numa_balancing")
    return {
        "numa_nodes": tuple(_numa_node(root, folder, index) for index in indices),
        "numa_balancing": None if balancing is None else balancing != 0,
    }


def _numa_node(root: Root, folder: str, index: int) -> NumaNode:
    total = re.search(r"MemTotal:\s+(\d+) kB", root.line(f"{folder}/node{index}/meminfo") or "")
    cpus = root.line(f"{folder}/node{index}/cpulist") or ""
    return NumaNode(index, cpus, int(total[1]) * 1024 if total else None)


def _shm(machine: Machine, kernel: Kernel | None, gaps: _Gaps, is_container: bool) -> dict[str, Any]:
    root = machine.root
    mount = mount_of(root, "/dev/shm")
    is_own = mount is not None and mount[0] == "/dev/shm"
    found: dict[str, Any] = {
        "shm_kind": mount[1] if mount and is_own else _kind_of_folder(root, "/dev/shm", has_mounts=mount is not None),
        "shm_leftovers": gaps.ask("shm_leftovers", lambda: shm_leftovers(root, not is_container)) or (),
    }
    if kernel is None:
        gaps.add("shm_total_bytes", CAPTURED, Why.NOT_HERE)
        gaps.add("shm_free_bytes", CAPTURED, Why.NOT_HERE)
        return found
    if found["shm_kind"] == "missing":
        return {**found, "shm_total_bytes": 0, "shm_free_bytes": 0}
    space = gaps.ask("shm_free_bytes", lambda: kernel.space(root.at("/dev/shm")))
    if space is None:
        gaps.add("shm_total_bytes", "/dev/shm did not respond")
        return found
    return {**found, "shm_total_bytes": space.total_bytes, "shm_free_bytes": space.free_bytes}


def _kind_of_folder(root: Root, path: str, *, has_mounts: bool) -> str | None:
    """`folder`, or `missing` if it certainly does not exist; None if it, or what is mounted, cannot be examined."""
    try:
        os.stat(root.at(path))
    except FileNotFoundError:
        return "missing"
    except OSError:
        return None
    return "folder" if has_mounts else None


def _user_threads(root: Root, user: int, limits: Limits) -> int | None:
    """The threads of this user, counted only if RLIMIT_NPROC could be reached: root has no such limit."""
    limit = limits.processes
    if user == 0 or limit is None or not limit.is_below(MOST_LIKELY_BOUND):
        return None
    return sum(_threads(root, pid, user) for pid in root.names("/proc") if pid.isdecimal())


def _threads(root: Root, pid: str, user: int) -> int:
    try:
        owner = os.stat(root.at(f"/proc/{pid}")).st_uid
    except OSError:
        return 0  # it ended in between
    return len(root.names(f"/proc/{pid}/task")) if owner == user else 0


def _clock(root: Root, kernel: Kernel, gaps: _Gaps) -> bool | None:
    if root.exists("/run/systemd/timesync/synchronized"):
        return True
    known = kernel.clock_is_synchronised()
    if known is None:
        gaps.add("clock_is_synchronised", "the kernel does not report whether its clock is synchronized", Why.NOT_HERE)
    return known


def _numa_calls(root: Root, kernel: Kernel, gaps: _Gaps) -> bool | None:
    """Only a seccomp filter can refuse the calls, so they are not tested without one."""
    status = re.search(r"^Seccomp:\s+(\d)", root.line("/proc/self/status") or "", re.M)
    if status and status[1] == "0":
        return True
    known = kernel.numa_calls_allowed()
    if known is None:
        gaps.add("numa_calls_allowed", "this kernel does not support get_mempolicy", Why.NOT_HERE)
    return known


def _logind(root: Root, user: int, is_container: bool, gaps: _Gaps) -> Logind | None:
    if is_container or not root.exists("/run/systemd/seats"):
        gaps.add("logind", "systemd-logind is not running", Why.NOT_HERE)
        return None
    name = next((n for n, uid in _users(root) if uid == user), None)
    return Logind(
        removes_ipc=user >= FIRST_USER and _removes_ipc(root),
        user_lingers=name is not None and root.exists(f"/var/lib/systemd/linger/{name}"),
        is_in_session="/user.slice/" in (root.line("/proc/self/cgroup") or ""),
    )


def _users(root: Root) -> Iterator[tuple[str, int]]:
    for line in (root.line("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            yield fields[0], int(fields[2])


def _removes_ipc(root: Root) -> bool:
    """RemoveIPC of logind.conf and its drop-ins, where the last setting counts; systemd's default is yes."""
    files = [*LOGIND_FILES, *(f"{folder}/{name}" for folder in LOGIND_FOLDERS for name in root.names(folder))]
    words = [w for f in files for w in re.findall(r"^\s*RemoveIPC\s*=\s*(\S+)", root.line(f) or "", re.M)]
    return not words or words[-1].lower() in ("yes", "true", "on", "1", "y", "t")


def _chosen(line: str | None) -> str | None:
    """The word in square brackets: `always [madvise] never`."""
    matched = re.search(r"\[(\w+)\]", line or "")
    return matched[1] if matched else None


def _cpu_list(cpus: tuple[int, ...]) -> str:
    """The kernel's list form: 0-31,64-95."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
