"""Notices about lost nodes, outside of the store: an anonymous file that all supervisors of a node read.

The nodes of a session stay connected until their ranks have joined. A node that is lost before that cannot report it in
the store, and may be the one that would have hosted the store.
"""

from __future__ import annotations

import json
import os
import threading

from ddpdoctor.facts.probe import Kind, Observation

__all__ = ["NodeNotices", "read"]

MOST_BYTES = 1 << 16
ENDS = {
    "ended": (Kind.DIED, "its ddpdoctor process ended"),
    "stopped": (
        Kind.STOPPED,
        "its ddpdoctor process stopped answering, although the machine answers (stopped or frozen)",
    ),
    "silent": (Kind.HOST_LOST, "its machine stopped answering"),
}


class NodeNotices:
    """The file whose descriptor supervisors get as `--news`; open until `close`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._lock = threading.Lock()
        self._is_open = True

    @classmethod
    def open(cls) -> NodeNotices | None:
        """None if the kernel does not support such files: then the ranks notice lost nodes by themselves, later."""
        try:
            return cls(os.memfd_create("ddpdoctor-news"))
        except OSError:
            return None

    def tell(self, host: str, node_rank: int | None, ranks: tuple[int, ...], end: str) -> None:
        """Add a notice about a lost node; `end` is one of ENDS. Thread-safe; ignored after `close`."""
        notice = {"host": host, "node_rank": node_rank, "ranks": ranks, "end": end}
        with self._lock:
            if self._is_open:
                os.write(self.fd, json.dumps(notice).encode() + b"\n")

    def close(self) -> None:
        """Close the file and ignore further notices: the descriptor may be reused."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.fd)


def read(fd: int) -> Observation | None:
    """The first lost node, for a rank that still waits for it."""
    line, end, _ = os.pread(fd, MOST_BYTES, 0).partition(b"\n")
    if not end:
        return None
    notice = json.loads(line)
    host, ranks = notice["host"], tuple(notice["ranks"])
    kind, reason = ENDS[notice["end"]]
    who = f"rank {ranks[0]} on {host}" if notice["node_rank"] is None else f"node {notice['node_rank']} ({host})"
    return Observation(
        kind,
        f"{who} joined, but {reason} before its ranks joined",
        ranks,
        host=host,
        node_rank=notice["node_rank"],
        phase="connect" if 0 in ranks else "join",
    )
