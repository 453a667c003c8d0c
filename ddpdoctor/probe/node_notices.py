"""What a node learns outside the store of other nodes: a file without a name, which all its supervisors read.

The nodes that met stay connected until their ranks have met as well. Who goes in between cannot tell it in the store, and
may be the one that would have hosted it.
"""

from __future__ import annotations

import json
import os
import threading

from ddpdoctor.facts.probe import Kind, Observation

__all__ = ["NodeNotices", "read"]

MOST_BYTES = 1 << 16
ENDS = {
    "ended": (Kind.DIED, "ddpdoctor ended there"),
    "stopped": (
        Kind.STOPPED,
        "ddpdoctor stopped answering there, although the machine answers (stopped or frozen)",
    ),
    "silent": (Kind.HOST_LOST, "its machine stopped answering"),
}


class NodeNotices:
    """The file that supervisors are given as `--news`; open until `close`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._lock = threading.Lock()
        self._is_open = True

    @classmethod
    def open(cls) -> NodeNotices | None:
        """None where the kernel gives no such file: then the ranks find out by themselves, later."""
        try:
            return cls(os.memfd_create("ddpdoctor-news"))
        except OSError:
            return None

    def tell(self, host: str, node_rank: int | None, ranks: tuple[int, ...], end: str) -> None:
        """That a node is gone, and what became of it: one of ENDS. From any thread; too late when it is closed."""
        notice = {"host": host, "node_rank": node_rank, "ranks": ranks, "end": end}
        with self._lock:
            if self._is_open:
                os.write(self.fd, json.dumps(notice).encode() + b"\n")

    def close(self) -> None:
        """Nothing is written from now on: the file's number may soon be another one's."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.fd)


def read(fd: int) -> Observation | None:
    """The first node that is gone, for a rank that still waits for it."""
    line, end, _ = os.pread(fd, MOST_BYTES, 0).partition(b"\n")
    if not end:
        return None
    notice = json.loads(line)
    host, ranks = notice["host"], tuple(notice["ranks"])
    kind, what = ENDS[notice["end"]]
    who = f"rank {ranks[0]} on {host}" if notice["node_rank"] is None else f"node {notice['node_rank']} ({host})"
    return Observation(
        kind,
        f"{who} joined, but {what} before its ranks joined",
        ranks,
        host=host,
        node_rank=notice["node_rank"],
        phase="connect" if 0 in ranks else "join",
    )
