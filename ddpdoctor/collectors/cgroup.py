"""This process's cgroup (v1, v2 or both): the limits that apply, from its group up to the highest visible one."""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Callable, Iterator

from ddpdoctor.facts.host import UNLIMITED, Cgroup
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import Root

__all__ = ["read_cgroup"]

V1_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2^63."""
CONTROLLERS = ("memory", "pids", "cpu", "cpuset")


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: `root` is the group that is mounted at `point`."""

    point: str
    root: str
    controllers: frozenset[str]
    version: int


@dataclass(frozen=True, slots=True)
class _Level:
    """One limit and its current usage, at one level of the tree."""

    limit: int
    used: int | None = None


def read_cgroup(root: Root) -> Cgroup | None:
    """The limits of the group of this process; None when no cgroup hierarchy is visible.

    Raises:
        OSError: /proc/self/cgroup, /proc/self/mountinfo or the hierarchy that is mounted cannot be read.
    """
    groups = dict(_own_groups(root.text("/proc/self/cgroup")))
    mounts = list(_mounts(root.text("/proc/self/mountinfo")))
    folders = {name: _folders(root, name, groups, mounts) for name in CONTROLLERS}
    if not any(levels for _, levels in folders.values()):
        return None
    points = {each[-1]: None for _, each in folders.values() if each}
    if not any(root.names(point) for point in points):
        raise OSError(errno.EACCES, "cgroups not readable", next(iter(points)))
    version, memory = folders["memory"]
    limit = _tightest(_memory(root, version, folder) for folder in memory)
    pids = _tightest(_pids(root, folder) for folder in folders["pids"][1])
    return Cgroup(
        version=version,
        path=groups.get("memory") or groups.get("") or "/",
        memory_limit_bytes=limit.limit if limit else None,
        memory_used_bytes=limit.used if limit else None,
        memory_oom_kills=_oom_kills(root, version, memory[0]) if memory else None,
        pids_limit=pids.limit if pids else None,
        pids_used=pids.used if pids else None,
        cpu_quota=_quota(root, *folders["cpu"]),
        cpus=_cpus(root, *folders["cpuset"]),
    )


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    """(controller, path) of /proc/self/cgroup; the controller of version 2 is ""."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                yield name, parts[2]


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(kinds[-1].split(",")) if kinds[0] == "cgroup" else frozenset({""})
        yield _Mount(_unescape(fields[4]), _unescape(fields[3]), options, 2 if kinds[0] == "cgroup2" else 1)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _folders(root: Root, name: str, groups: dict[str, str], mounts: list[_Mount]) -> tuple[int, list[str]]:
    """The version that has the controller, and the folders from this process's group up to the mount point."""
    key = name if name in groups else ""
    mount = next((m for m in mounts if key in m.controllers), None)
    if mount is None or key not in groups:
        return 2, []
    below = posixpath.relpath(groups[key], mount.root) if groups[key].startswith(mount.root.rstrip("/") + "/") else "."
    folder = posixpath.normpath(posixpath.join(mount.point, below))
    if ".." in groups[key].split("/") or not root.exists(folder):
        folder = mount.point  # this process's group is outside of what this namespace shows
    levels = [folder]
    while len(folder) > len(mount.point):
        folder = posixpath.dirname(folder)
        levels.append(folder)
    return mount.version, levels


def _tightest(levels: Iterator[_Level | None]) -> _Level | None:
    """The level with the lowest limit; None when no level could be read."""
    known = [level for level in levels if level is not None]
    limited = [level for level in known if level.limit != UNLIMITED]
    return min(limited, key=lambda level: level.limit, default=known[0] if known else None)


def _memory(root: Root, version: int, folder: str) -> _Level | None:
    if version == 2:
        return _level(root, f"{folder}/memory.max", f"{folder}/memory.current", int)
    level = _level(root, f"{folder}/memory.limit_in_bytes", f"{folder}/memory.usage_in_bytes", int)
    above = re.search(r"^hierarchical_memory_limit (\d+)$", root.line(f"{folder}/memory.stat") or "", re.M)
    if level is None or above is None:
        return level
    # Limits of parents that this namespace hides apply as well.
    limit = min((_v1(n) for n in (level.limit, int(above[1])) if _v1(n) != UNLIMITED), default=UNLIMITED)
    return _Level(limit, level.used)


def _pids(root: Root, folder: str) -> _Level | None:
    return _level(root, f"{folder}/pids.max", f"{folder}/pids.current", int)


def _level(root: Root, limit: str, used: str, convert: Callable[[str], int]) -> _Level | None:
    line = root.line(limit)
    if line is None or not re.fullmatch(r"max|-?\d+", line):
        return None
    return _Level(UNLIMITED if line == "max" else _v1(convert(line)), root.number(used))


def _v1(limit: int) -> int:
    return UNLIMITED if limit < 0 or limit >= V1_UNLIMITED else limit


def _oom_kills(root: Root, version: int, folder: str) -> int | None:
    text = root.line(f"{folder}/memory.events" if version == 2 else f"{folder}/memory.oom_control") or ""
    match = re.search(r"^oom_kill (\d+)$", text, re.M)
    return int(match[1]) if match else None


def _quota(root: Root, version: int, folders: list[str]) -> float | None:
    quotas = [quota for folder in folders if (quota := _quota_at(root, version, folder)) is not None]
    return min((q for q in quotas if q != UNLIMITED), default=float(UNLIMITED) if quotas else None)


def _quota_at(root: Root, version: int, folder: str) -> float | None:
    if version == 2:
        quota, _, period = (root.line(f"{folder}/cpu.max") or "").partition(" ")
    else:
        quota = root.line(f"{folder}/cpu.cfs_quota_us") or ""
        period = root.line(f"{folder}/cpu.cfs_period_us") or ""
    if quota in ("max", "-1"):
        return float(UNLIMITED)
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _cpus(root: Root, version: int, folders: list[str]) -> str | None:
    if not folders:
        return None
    names = ("cpuset.cpus.effective",) if version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
    return next((line for folder in folders for name in names if (line := root.line(f"{folder}/{name}"))), None)
