"""Facts from system calls: limits, affinity, free space, the clock. Tests pass a replacement."""

from __future__ import annotations

import os
import resource

from ddpdoctor.facts.host import UNLIMITED, Limit, Limits
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Kernel", "Space"]

STA_UNSYNC = 0x40
TIMEX_BYTES = 256
"""More than sizeof(struct timex), 208 on 64-bit Linux."""
TIMEX_STATUS = 40
"""Offset of `status` in struct timex on 64-bit Linux: modes and padding, then four longs."""
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
"""The number of the system call, by architecture (asm/unistd.h)."""
EPERM = 1


@dataclass(frozen=True, slots=True)
class Space:
    """A file system, in bytes."""

    total_bytes: int
    free_bytes: int


class Kernel:
    """The kernel that runs this process."""

    def user(self) -> int:
        """The effective user id."""
        return os.geteuid()

    def cpus(self) -> tuple[int, ...]:
        """The CPUs that this process may run on (sched_getaffinity)."""
        return tuple(sorted(os.sched_getaffinity(0)))

    def release(self) -> tuple[str, str]:
        """The kernel's release and the machine (uname)."""
        return os.uname().release, os.uname().machine

    def limits(self) -> Limits:
        """The limits of this process (getrlimit)."""
        return Limits(
            _limit(resource.RLIMIT_NOFILE),
            _limit(resource.RLIMIT_MEMLOCK),
            _limit(resource.RLIMIT_NPROC),
            _limit(resource.RLIMIT_STACK),
            _limit(resource.RLIMIT_AS),
        )

    def space(self, path: str) -> Space:
        """The size of the file system of `path`, and the free space for unprivileged users (statvfs).

        Raises:
            OSError: statvfs failed.
        """
        status = os.statvfs(path)
        return Space(status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)

    def clock_is_synchronised(self) -> bool | None:
        """Whether the kernel reports a synchronized clock (adjtimex without STA_UNSYNC); None if the call fails."""
        import ctypes

        timex = ctypes.create_string_buffer(TIMEX_BYTES)
        if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
        status = int.from_bytes(timex.raw[TIMEX_STATUS : TIMEX_STATUS + 4], "little")
        return not status & STA_UNSYNC

    def numa_calls_allowed(self) -> bool | None:
        """Whether get_mempolicy is allowed; None if its number is unknown, or for errors other than EPERM."""
        import ctypes

        number = GET_MEMPOLICY.get(os.uname().machine)
        if number is None:
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        null = ctypes.c_void_p(None)
        if libc.syscall(ctypes.c_long(number), null, null, ctypes.c_ulong(0), null, ctypes.c_ulong(0)) == 0:
            return True
        return False if ctypes.get_errno() == EPERM else None


def _limit(which: int) -> Limit:
    soft, hard = resource.getrlimit(which)
    return Limit(*(UNLIMITED if value == resource.RLIM_INFINITY else value for value in (soft, hard)))
