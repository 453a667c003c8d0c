"""The supervisors of one job on one node, which agree without the store on who speaks for the node.

Each one binds a datagram socket with an abstract name that says its rank and pid; /proc/net/unix lists the others'.
"""

from __future__ import annotations

import os
import socket
from binascii import crc32

from ddpdoctor.probe.place import Place, host_key
from ddpdoctor.probe.proc import read_stat

__all__ = ["Siblings"]


class Siblings:
    """This rank among the ranks that the same launcher started on this node for the same job.

    `job` is a number that they share and other jobs do not.
    """

    def __init__(self, place: Place, job: int) -> None:
        same = f"{host_key()} {place.node_rank} {place.master_addr}:{place.master_port} {place.prefix} {job}"
        self.rank = place.rank
        self.names = f"ddpdoctor/{crc32(same.encode()):08x}/"
        self.own = f"{self.names}{place.rank}/{os.getpid()}"
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.link.setblocking(False)
        self.link.bind(f"\0{self.own}")

    def is_first(self) -> bool:
        """Whether this rank speaks for the node: no other has spoken, and no lower one lives that will."""
        return not self._has_heard() and all(rank >= self.rank for rank, pid in self._others() if _runs(pid))

    def speak(self) -> None:
        """Tell the others that the node's word is given."""
        for rank, pid in self._others():
            try:
                self.link.sendto(b"told", f"\0{self.names}{rank}/{pid}")
            except OSError:
                continue  # it is gone: it will not speak either

    def _has_heard(self) -> bool:
        try:
            return bool(self.link.recv(16))
        except OSError:
            return False  # nothing came

    def _others(self) -> list[tuple[int, int]]:
        """Rank and pid of each."""
        try:
            with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
                names = [line.rpartition("@")[2].strip() for line in file if self.names in line]
        except OSError:
            return []  # without /proc each rank speaks for itself
        words = [name.removeprefix(self.names).split("/") for name in names if name != self.own]
        return [(int(rank), int(pid)) for rank, pid in words]


def _runs(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZXTt"
