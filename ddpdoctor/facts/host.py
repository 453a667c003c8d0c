"""`host`: limits, memory, /dev/shm, cgroup, container, NUMA, clock, file systems of one node."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.visibility import visible
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.job import Job

__all__ = [
    "UNLIMITED",
    "Cgroup",
    "ExtensionLock",
    "Folder",
    "Host",
    "Leftover",
    "Limit",
    "Limits",
    "Logind",
    "NumaNode",
    "SchedulerNode",
    "count_cpus",
    "cpus_in",
    "local_ranks",
    "readable",
    "visible_gpus",
    "world_ranks",
]

UNLIMITED = -1
"""The value of a limit that is not set."""

MOST_CPUS = 1 << 16
"""More CPUs than any machine has: a list with a higher number is malformed."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One resource limit of this process (getrlimit); -1 is unlimited. Sizes are bytes."""

    soft: int
    hard: int

    def is_below(self, need: int) -> bool:
        """The soft limit is set and smaller than `need`."""
        return self.soft != UNLIMITED and self.soft < need


@dataclass(frozen=True, slots=True)
class Limits:
    """RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_NPROC, RLIMIT_STACK and RLIMIT_AS (sizes in bytes), of this process."""

    open_files: Limit | None = None
    locked_memory: Limit | None = None
    processes: Limit | None = None
    stack: Limit | None = None
    address_space: Limit | None = None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The tightest limits from this process's cgroup up to the highest visible one; -1 is unlimited.

    `version` is 1 or 2 (that of the memory controller; 2 without one). `used` values belong to the level whose limit is
    reported. `cpu_quota` counts CPUs: 1.5 is 150 ms of each 100 ms period.
    """

    version: int
    path: str = "/"
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_oom_kills: int | None = None
    pids_limit: int | None = None
    pids_used: int | None = None
    cpu_quota: float | None = None
    cpus: str | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """Files in /dev/shm that one library (`maker`: `nccl` or `torch`) created. `owner` is `alive`, `dead` or `unknown`."""

    maker: str
    owner: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node; `cpus` in the kernel's list form (`0-31,64-95`), empty for a node with memory only."""

    index: int
    cpus: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that jobs write to; fields are None where the file system did not respond."""

    path: str
    exists: bool | None = None
    is_writable: bool | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExtensionLock:
    """A lock file of torch.utils.cpp_extension: its builder keeps it open until it exits (torch/utils/file_baton.py).

    `holder_pid` is None when no visible process holds it. `is_local`: the holder can only be a process that is visible
    here, so None means that it is dead.
    """

    path: str
    age_seconds: float
    holder_pid: int | None = None
    is_local: bool = True


@dataclass(frozen=True, slots=True)
class Logind:
    """What systemd-logind does with a user's shared memory when the last session closes."""

    removes_ipc: bool
    user_lingers: bool = False
    is_in_session: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerNode:
    """What a scheduler says about the node, from a file: `state` in its own words, `reason` of a state that is not normal.

    `gpus` are those that the node has, `gpus_usable` those that it can give to jobs (Kubernetes: capacity and allocatable).
    """

    state: str | None = None
    reason: str | None = None
    is_unschedulable: bool | None = None
    gpus: int | None = None
    gpus_usable: int | None = None


@dataclass(frozen=True, slots=True)
class Host(Section):
    """One node without its GPUs and networks. Limits of -1 are "unlimited". None is unknown, and `gaps` says why.

    `cpus_allowed` is sched_getaffinity of this process, `cpus_allowed_list` the same as a list. `container` is the
    runtime (`docker`, `kubernetes`, …), "" outside of one; `container_evidence` is what shows it. `governor` is that of
    the first CPU. `numa_calls_allowed` is False when a seccomp filter refuses get_mempolicy. `rdma_devices` are the verbs
    devices that a process here can open (/dev/infiniband/uverbs*).
    """

    kernel: str = ""
    architecture: str = ""
    is_root: bool = False
    user_id: int | None = None
    cpus_online: int | None = None
    cpus_allowed: int | None = None
    cpus_allowed_list: str | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_kind: str | None = None
    shm_leftovers: tuple[Leftover, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    user_threads: int | None = None
    cgroup: Cgroup | None = None
    container: str = ""
    container_evidence: str = ""
    numa_nodes: tuple[NumaNode, ...] = ()
    numa_balancing: bool | None = None
    numa_calls_allowed: bool | None = None
    governor: str | None = None
    huge_pages: str | None = None
    temporary_folder: Folder | None = None
    clock_is_synchronised: bool | None = None
    extension_locks: tuple[ExtensionLock, ...] = ()
    logind: Logind | None = None
    scheduler: SchedulerNode | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def is_container(self) -> bool:
        """Limits, processes and /dev/shm are a container's own. WSL is a virtual machine."""
        return self.container not in ("", "wsl")


def cpus_in(cpus: str) -> frozenset[int]:
    """The CPU numbers in the kernel's list form (`0-3,8`); empty for an empty or malformed list."""
    numbers: set[int] = set()
    for part in cpus.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()) and int(last or first) < MOST_CPUS:
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def count_cpus(cpus: str) -> int:
    """The number of CPUs in the kernel's list form (`0-3,8`); 0 for an empty or malformed list."""
    return len(cpus_in(cpus))


def visible_gpus(environ: Environ, gpu: Gpu | None) -> int:
    """How many GPUs the ranks of this node can use; 0 where NVML was not queried."""
    return 0 if gpu is None else visible(environ.variables, gpu).count


def local_ranks(environ: Environ, gpu: Gpu | None, job: Job | None) -> int | None:
    """How many ranks run on this node: from the launch line, else the launcher of this process, else one per visible GPU,
    else None (unknown).
    """
    of_line = None if job is None else job.ranks_per_node
    return of_line or environ.local_world_size or visible_gpus(environ, gpu) or None


def world_ranks(environ: Environ, gpu: Gpu | None, job: Job | None) -> int:
    """How many ranks the whole job has, as far as known; at least those of this node."""
    of_line = None if job is None or job.ranks_per_node is None else job.world_size or job.ranks_per_node
    return max(of_line or environ.world_size or 0, local_ranks(environ, gpu, job) or 1)


def readable(size_bytes: int) -> str:
    """A size as text: `64 MiB`, `1.5 GiB`; -1 is `unlimited`."""
    if size_bytes == UNLIMITED:
        return "unlimited"
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
