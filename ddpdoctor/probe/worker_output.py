"""A worker's output: the end of it, NCCL's warnings, and the transport that NCCL uses to each peer."""

from __future__ import annotations

import re

__all__ = ["WorkerOutput"]

TAIL_BYTES = 8192
MOST_WARNINGS = 20
TELLING = re.compile(r"error|fatal|fail|terminate|exception|abort|NCCL WARN|out of memory|denied", re.IGNORECASE)
BY_PEERS = re.compile(r"terminate called|closed by peer|reset by peer|Timed out", re.IGNORECASE)
OWN_LACK = re.compile(
    r"bad_alloc|Bad file descriptor|Too many open files|Cannot allocate memory|No space left on device"
    r"|enforce fail at \S*(?:loop|listener|socket|device)\.cc"
)
"""Errors that no peer can cause (Gloo's connections to peers are in pair.cc)."""
NCCL_WARNING = re.compile(r"NCCL (?:WARN|ATTN)\s+(.*)|(NCCL DIAG (?!\[OK\]|===|.*completed in).*)")
NCCL_INFO = b"NCCL INFO "
CHANNEL = re.compile(r"(?<!\d)(\d{1,18})\[\w{1,64}\] -> (\d{1,18})\[\w{1,64}\] (?:\[(?:send|receive)\] )?via (.+)")
"""`Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA comm 0x… nRanks 16`, from 2.4 to 2.30."""


class WorkerOutput:
    """The output of the worker of one rank. `transports` are by the peer's rank: P2P/CUMEM, SHM, NET/IB, NET/Socket."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.transports: dict[str, str] = {}
        self._tail = b""
        self._unended = b""

    def take(self, text: bytes) -> None:
        """Add output. NCCL's INFO lines are read but not kept."""
        *lines, self._unended = (self._unended + text).split(b"\n")
        for line in lines:
            if NCCL_INFO in line:
                self._note(line.decode("utf-8", "replace"))
        self._tail = b"\n".join([self._tail, *(line for line in lines if NCCL_INFO not in line)])[-TAIL_BYTES:]

    def _note(self, line: str) -> None:
        matched = CHANNEL.search(line)
        if matched is None:
            return
        peer = matched[2] if int(matched[1]) == self.rank else matched[1]
        if self.transports.get(peer, "P2P").startswith("P2P"):  # of several, the one without peer access
            self.transports[peer] = _transport(matched[3])

    @property
    def text(self) -> str:
        """The end of its output."""
        return (self._tail + b"\n" + self._unended)[-TAIL_BYTES:].decode("utf-8", "replace")

    @property
    def warnings(self) -> tuple[str, ...]:
        """NCCL's warnings, and what its diagnostics (2.31 and newer) report."""
        found = (match[1] or match[2] for match in NCCL_WARNING.finditer(self.text))
        return tuple(found)[:MOST_WARNINGS]

    @property
    def lost_its_peers(self) -> bool:
        """Whether its output shows that lost peers ended it."""
        return bool(BY_PEERS.search(self.text)) and not OWN_LACK.search(self.text)

    def last_error_line(self) -> str:
        """The last line with an error, "" without one."""
        lines = [line.strip() for line in self.text.splitlines()]
        return next((line[:300] for line in reversed(lines) if TELLING.search(line) and "UserWarning" not in line), "")


def _transport(words: str) -> str:
    kind, _, rest = words.partition(" comm ")[0].strip().partition("/")
    if kind == "NET":
        return f"NET/{rest.partition('/')[0]}"
    return "SHM" if kind == "SHM" or "shared memory" in words else f"P2P/{rest.split(' ')[0].split('/')[0]}"
