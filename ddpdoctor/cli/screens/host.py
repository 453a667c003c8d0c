"""`ddpdoctor host`: limits, memory, /dev/shm, cgroup, container, NUMA, clock."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.cli.screens.groups import PropertyRow, draw_groups, draw_missing, known
from ddpdoctor.facts.host import UNLIMITED, Host, Limit, readable
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The facts of `host`, at most `width` columns wide."""
    if facts.host is None:
        return draw_missing(facts, "host", width=width, colour=colour)
    host = facts.host
    groups = (
        ("machine", _machine(host)),
        ("memory", _memory(host)),
        ("limits", _limits(host)),
        ("control group", _cgroup(host)),
        ("NUMA", _numa(host)),
        ("files", _files(host)),
    )
    return draw_groups(groups, width=width, colour=colour)


def _machine(host: Host) -> Iterator[PropertyRow]:
    yield PropertyRow("kernel", f"{host.kernel} {host.architecture}".strip() or "n/a")
    yield PropertyRow("container", host.container or "none", host.container_evidence)
    online = "" if host.cpus_online is None else f"of {host.cpus_online} online"
    allowed = host.cpus_allowed
    cpus = (
        None if allowed is None else f"{allowed} ({host.cpus_allowed_list})" if host.cpus_allowed_list else str(allowed)
    )
    yield known(host, "CPUs", cpus, "cpus_allowed", online)
    yield known(host, "CPU governor", host.governor, "governor")
    yield known(
        host, "clock", _yes(host.clock_is_synchronised, "synchronized", "not synchronized"), "clock_is_synchronised"
    )
    if host.logind is not None:
        yield PropertyRow("RemoveIPC", "yes" if host.logind.removes_ipc else "no", _session(host))


def _session(host: Host) -> str:
    assert host.logind is not None
    words = ["in a login session" if host.logind.is_in_session else "in no login session"]
    return ", ".join([*words, "lingering is enabled"] if host.logind.user_lingers else words)


def _memory(host: Host) -> Iterator[PropertyRow]:
    available = "" if host.memory_available_bytes is None else f"{readable(host.memory_available_bytes)} available"
    yield known(host, "memory", _size(host.memory_total_bytes), "memory_total_bytes", available)
    yield known(host, "swap", _size(host.swap_total_bytes), "swap_total_bytes")
    free = "" if host.shm_free_bytes is None else f"{readable(host.shm_free_bytes)} free"
    kind = "" if host.shm_kind in (None, "tmpfs") else f"{host.shm_kind}, "
    yield known(host, "/dev/shm", _size(host.shm_total_bytes), "shm_total_bytes", kind + free)
    for leftover in host.shm_leftovers:
        yield PropertyRow(
            "  left there",
            f"{leftover.files} files of {leftover.maker}",
            f"{readable(leftover.size_bytes)}, owner {leftover.owner}",
        )
    yield known(host, "huge pages", host.huge_pages, "huge_pages")


def _limits(host: Host) -> Iterator[PropertyRow]:
    limits = host.limits
    for what, limit, is_size in (
        ("open files", limits.open_files, False),
        ("locked memory", limits.locked_memory, True),
        ("processes", limits.processes, False),
        ("stack", limits.stack, True),
    ):
        yield known(
            host,
            what,
            _limit(limit, is_size),
            "limits",
            "" if limit is None else f"hard {_number(limit.hard, is_size)}",
        )


def _limit(limit: Limit | None, is_size: bool) -> str | None:
    return None if limit is None else _number(limit.soft, is_size)


def _number(value: int, is_size: bool) -> str:
    return "unlimited" if value == UNLIMITED else readable(value) if is_size else str(value)


def _cgroup(host: Host) -> Iterator[PropertyRow]:
    cgroup = host.cgroup
    if cgroup is None:
        yield known(host, "limits", None, "cgroup")
        return
    yield PropertyRow("version", str(cgroup.version), cgroup.path)
    used = "" if cgroup.memory_used_bytes is None else f"{readable(cgroup.memory_used_bytes)} used"
    kills = f", {cgroup.memory_oom_kills} killed" if cgroup.memory_oom_kills else ""
    yield PropertyRow("memory", _size(cgroup.memory_limit_bytes) or "n/a", used + kills)
    pids = None if cgroup.pids_limit is None else _number(cgroup.pids_limit, False)
    yield PropertyRow("pids", pids or "n/a", "" if cgroup.pids_used is None else f"{cgroup.pids_used} used")
    quota = cgroup.cpu_quota
    yield PropertyRow("CPU quota", "n/a" if quota is None else "unlimited" if quota == UNLIMITED else f"{quota:g} CPUs")


def _numa(host: Host) -> Iterator[PropertyRow]:
    for node in host.numa_nodes:
        memory = "memory unknown" if node.memory_bytes is None else readable(node.memory_bytes)
        yield PropertyRow(f"node {node.index}", node.cpus or "no CPUs", memory)
    yield known(host, "balancing", _yes(host.numa_balancing, "on", "off"), "numa_balancing")
    yield known(host, "NUMA calls", _yes(host.numa_calls_allowed, "allowed", "refused"), "numa_calls_allowed")


def _files(host: Host) -> Iterator[PropertyRow]:
    folder = host.temporary_folder
    free = "" if folder is None or folder.free_bytes is None else f"{readable(folder.free_bytes)} free"
    state = "" if folder is None or folder.is_writable else "does not exist" if not folder.exists else "not writable, "
    yield known(host, "temporary", folder.path if folder else None, "temporary_folder", state + free)
    for lock in host.extension_locks:
        holder = "held by no process" if lock.holder_pid is None else f"held by process {lock.holder_pid}"
        yield PropertyRow("build lock", lock.path, f"{lock.age_seconds:.0f} s old, {holder}")


def _size(value: int | None) -> str | None:
    return None if value is None else readable(value)


def _yes(value: bool | None, yes: str, no: str) -> str | None:
    return None if value is None else yes if value else no
