"""Signs of life between hosts: each one counts up in the store, and looks whether the next ones still do.

A host that falls silent is knocked at before anything is said of it: a process that answers lives, one for which only
the kernel answers is stopped, a port that refuses belongs to a process that ended.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.board import Board
from ddpdoctor.probe.echo import ask
from ddpdoctor.probe.hosts import Card

__all__ = ["BEAT_SECONDS", "Pulse"]

BEAT_SECONDS = 0.5
SILENT_SECONDS = 1.6
"""How long a host may skip its beats before it is knocked at, on top of what this process itself was late."""
KNOCK_SECONDS = 0.7
WATCHED = 3
"""How many of the following hosts each host watches: that many may vanish at once and are all named."""


@dataclass
class _Seen:
    count: int
    since: float


class Pulse:
    """The pulse of one host, beaten and felt by the supervisor that stands for it."""

    def __init__(self, board: Board, own: Card) -> None:
        self.board = board
        self.own = own
        self._last: float | None = None
        self._seen: dict[int, _Seen] = {}

    def beat(self, now: float, phase: str) -> Observation | None:
        """Give a sign of life; what is wrong with one of the hosts that are watched. Call it every BEAT_SECONDS."""
        own, board = self.own, self.board
        late = 0.0 if self._last is None else max(now - self._last - BEAT_SECONDS, 0.0)
        self._last = now
        board.beat(own.index)
        count = board.count_hosts()
        for step in range(1, min(WATCHED, count - 1) + 1):
            index = (own.index + step) % count
            beats = board.beats(index)
            seen = self._seen.get(index)
            if seen is None or seen.count != beats or late > BEAT_SECONDS:
                self._seen[index] = _Seen(beats, now)
            elif now - seen.since > SILENT_SECONDS:
                found = self._knock(index, now - seen.since, phase)
                if found is not None:
                    return found
                seen.since = now
        return None

    def _knock(self, index: int, seconds: float, phase: str) -> Observation | None:
        card = self.board.card(index)
        if card is None:
            return None
        address = card.address or self.board.store.address
        try:
            with socket.create_connection((address, card.port), KNOCK_SECONDS) as link:
                if ask(link, card.token, 64, KNOCK_SECONDS):
                    return None
            kind, words = Kind.STOPPED, "is stopped or frozen: its host answers, the process does not"
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
                kind, words = Kind.DIED, "ended: nothing listens any more where it answered"
            else:
                kind, words = Kind.HOST_LOST, f"cannot be reached any more, and neither can its host ({address})"
        return Observation(
            kind,
            f"the supervisor of rank {card.rank} on {card.host} (pid {card.pid}) {words};"
            f" no sign of life for {seconds:.1f} s",
            ranks=(card.rank,),
            seen_by=self.own.rank,
            host=card.host,
            node_rank=card.node_rank,
            local_rank=card.local_rank,
            pid=card.pid,
            phase=phase,
        )
