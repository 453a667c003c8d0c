"""Open files: the process that hosts the store holds two connections for every rank of the job."""

from __future__ import annotations

import errno
import os
import resource

__all__ = ["OUT_OF_FILES", "allow_more", "drain", "limit"]

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
MOST = 1 << 20


def limit() -> int:
    """How many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_more() -> None:
    """Raise the limit as far as this user may. Called when the worker runs already: that one keeps the job's own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return  # it stays as it was


def drain(fd: int) -> tuple[int, bytes]:
    """What can be read now; the descriptor becomes -1 (and is closed) at its end."""
    chunks = []
    while fd >= 0:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not chunk:
            os.close(fd)
            fd = -1
        chunks.append(chunk)
    return fd, b"".join(chunks)
