"""The limit of open files: the process that hosts the store has two connections per rank, a multi-node check one per node."""

from __future__ import annotations

import resource

__all__ = ["file_limit", "raise_file_limit"]

MOST_FILES = 1 << 20


def file_limit() -> int:
    """How many files this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit(most: int = MOST_FILES) -> int:
    """Raise the soft limit up to the hard limit or `most`, and return it. Running processes keep theirs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft  # unchanged
    return file_limit()
