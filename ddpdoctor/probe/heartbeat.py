"""Heartbeats between hosts: each host keeps connections to the echo servers of the next hosts and queries them regularly.

They need no store and no main thread, so a suspended process, a dead one, a lost host and a slow one can be
distinguished.
"""

from __future__ import annotations

import functools
import select
import threading
import time
from collections.abc import Sequence

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network.connect import OUT_OF_FILES, connect, outcome_of
from ddpdoctor.probe.echo import echoes
from ddpdoctor.probe.hosts import HostCard
from ddpdoctor.system.timeouts import start_thread

__all__ = ["MOST_AT_HEAD", "Heartbeat", "check_process", "observe_host", "watched"]

BEAT_SECONDS = 0.4
ANSWER_SECONDS = 0.9
"""How long an answer may take; it takes less than 1 ms unless the other machine is very busy."""
CHECK_SECONDS = 0.6
NEXT = 3
"""How many of the following hosts each host watches: this many may be lost at once and are all reported."""
MOST_AT_HEAD = 64
"""Up to this many hosts, all watch the process that hosts the store as well."""
QUESTION_BYTES = 64


def watched(index: int, count: int) -> list[int]:
    """The hosts that one host watches."""
    return sorted({(index + step) % count for step in range(1, min(NEXT, count - 1) + 1)})


class Heartbeat:
    """Watches some hosts, each in a daemon thread, until `stop`; problems are added to `found`."""

    def __init__(self, rank: int, cards: Sequence[HostCard], store_address: str) -> None:
        self.rank = rank
        self.found: list[Observation] = []
        self._stopped = threading.Event()
        for card in cards:
            start_thread(functools.partial(self._watch, card, store_address))

    def stop(self) -> None:
        """Report nothing more."""
        self._stopped.set()

    def _watch(self, card: HostCard, store_address: str) -> None:
        address = card.address or store_address
        has_answered = False
        while not self._stopped.is_set():
            last = time.monotonic()
            try:
                with connect(address, card.port, ANSWER_SECONDS) as link:
                    while echoes(link, card.token, QUESTION_BYTES, ANSWER_SECONDS):
                        last, has_answered = time.monotonic(), True
                        select.select([link], [], [], BEAT_SECONDS)  # readable earlier: the other end is gone
                        if self._stopped.is_set():
                            return
            except OSError:
                pass  # it is checked again, on a new connection
            kind, problem = check_process(address, card)
            if kind is not Kind.STOPPED and not has_answered:
                return  # it was never reached: the link checks report that
            if kind is not None and not self._stopped.is_set():
                who = f"the supervisor of rank {card.rank} on {card.host} (pid {card.pid})"
                silent = f"no heartbeat for {time.monotonic() - last:.1f} s"
                self.found.append(observe_host(card, kind, f"{who} {problem} ({silent})", self.rank))
                return


def observe_host(card: HostCard, kind: Kind, message: str, seen_by: int) -> Observation:
    """An observation about the supervisor that represents a host."""
    return Observation(
        kind,
        message,
        ranks=(card.rank,),
        seen_by=seen_by,
        host=card.host,
        node_rank=card.node_rank,
        local_rank=card.local_rank,
        pid=card.pid,
    )


def check_process(address: str, card: HostCard) -> tuple[Kind | None, str]:
    """The problem with a supervisor that stopped answering, None if it answers after all."""
    try:
        with connect(address, card.port, CHECK_SECONDS) as link:
            if echoes(link, card.token, QUESTION_BYTES, CHECK_SECONDS):
                return None, ""
        return Kind.STOPPED, "is stopped or frozen; its host answers"
    except OSError as error:
        if outcome_of(error) in (ConnectOutcome.REFUSED, ConnectOutcome.RESET):
            return Kind.DIED, "ended (its port is closed)"
        if error.errno in OUT_OF_FILES:
            return None, ""  # the problem is in this process
    return Kind.HOST_LOST, f"is no longer reachable, and neither is its host {address}"
