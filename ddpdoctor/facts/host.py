"""`host`: limits, memory, /dev/shm, cgroup, container, NUMA, clock, file systems of one node."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Host"]


@dataclass(frozen=True, slots=True)
class Host(Section):
    """Limits of -1 are "unlimited". None is unknown, and `gaps` says why."""

    kernel: str = ""
    architecture: str = ""
    is_root: bool = False
    cpus_online: int | None = None
    cpus_allowed: int | None = None
    memory_total_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()
