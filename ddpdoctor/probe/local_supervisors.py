"""The supervisors of one job on one node, which agree without the store on which of them reports for the node.

Each one binds a datagram socket with an abstract name that contains its rank and pid; /proc/net/unix lists the others'.
"""

from __future__ import annotations

import os
import socket
from binascii import crc32
from collections.abc import Collection

from ddpdoctor.probe.local_peers import LocalPeer
from ddpdoctor.probe.proc import read_stat
from ddpdoctor.probe.rank_env import RankEnv, host_key

__all__ = ["LocalSupervisors"]

REPORTED = b"told"
EARLIER_SECONDS = 3.0
"""How much earlier than this rank another rank of the same launch may have started."""
TICKS = os.sysconf("SC_CLK_TCK")


class LocalSupervisors:
    """This rank among the ranks that the same launcher started on this node for the same job.

    `job` is a number that they share and other jobs do not. `is_launched`: the parent's only children are this node's
    ranks, in order, and it reaps none of them while one runs.
    """

    def __init__(self, rank_env: RankEnv, job: int, *, is_launched: bool = False) -> None:
        same = (
            f"{host_key()} {rank_env.node_rank} {rank_env.master_addr}:{rank_env.master_port} {rank_env.prefix} {job}"
        )
        self.rank_env = rank_env
        self._is_launched = is_launched
        self._is_reported = False
        self._left: set[int] = set()
        self.rank = rank_env.rank
        self.names = f"ddpdoctor/{crc32(same.encode()):08x}/"
        self.own = f"{self.names}{rank_env.rank}/{os.getpid()}"
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.link.setblocking(False)
        self.link.bind(f"\0{self.own}")

    def peers(self) -> list[LocalPeer]:
        """The other ranks that already run, even before they join the store; not those left over from an earlier launch."""
        own = read_stat(os.getpid())
        found = [(rank, pid, read_stat(pid)) for rank, pid in {*self._others(), *self._children()}]
        return [
            LocalPeer(rank, pid, stat.started, self.rank_env.host, node_rank=self.rank_env.node_rank)
            for rank, pid, stat in found
            if stat is not None and own is not None and own.started - stat.started < EARLIER_SECONDS * TICKS
        ]

    def _children(self) -> list[tuple[int, int]]:
        """Rank and pid of each other rank that the same launcher started, even if it dies before it reports its rank."""
        if not self._is_launched or self.rank_env.local_rank is None:
            return []
        parent = os.getppid()
        try:
            with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
                pids = [int(word) for word in file.read().split()]
        except OSError:
            return []  # a kernel without this file: a rank that dies that early is noticed later
        first = self.rank - self.rank_env.local_rank
        return [(first + index, pid) for index, pid in enumerate(pids) if pid != os.getpid()]

    def is_first(self, gone: Collection[int]) -> bool:
        """Whether this rank reports for the node: no other has reported, and no lower one is alive, except those in `gone`."""
        self._hear()
        lower = [pid for rank, pid in self._others() if rank < self.rank and rank not in gone]
        return not self._is_reported and not any(map(_runs, lower))

    def announce_reported(self) -> None:
        """Tell the other supervisors that the node's report was made."""
        self._say(REPORTED)

    def announce_leaving(self) -> None:
        """Tell the other supervisors that this rank ends normally."""
        self._say(str(os.getpid()).encode())

    def left_pids(self) -> set[int]:
        """The pids of those that announced leaving."""
        self._hear()
        return self._left

    def _say(self, word: bytes) -> None:
        for rank, pid in self._others():
            try:
                self.link.sendto(word, f"\0{self.names}{rank}/{pid}")
            except OSError:
                continue  # it is gone, or suspended with a full buffer: it will not report either

    def _hear(self) -> None:
        while True:
            try:
                word = self.link.recv(16)
            except OSError:
                return  # no more messages
            if word.isdigit():
                self._left.add(int(word))
            self._is_reported = self._is_reported or word == REPORTED

    def _others(self) -> list[tuple[int, int]]:
        """Rank and pid of each other supervisor."""
        try:
            with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
                names = [line.rpartition("@")[2].strip() for line in file if self.names in line]
        except OSError:
            return []  # without /proc, each rank reports for itself
        words = [name.removeprefix(self.names).split("/") for name in names if name != self.own]
        return [(int(rank), int(pid)) for rank, pid in words]


def _runs(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZXTt"
