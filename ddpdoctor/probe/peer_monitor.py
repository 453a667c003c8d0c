"""The other ranks as far as they are watched: those of this host through /proc, the other hosts by pulse and mesh."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.network.connect import source_address
from ddpdoctor.probe import node_notices
from ddpdoctor.probe.echo import Echo
from ddpdoctor.probe.heartbeat import MOST_AT_HEAD, Pulse, check_process, observe_host, watched
from ddpdoctor.probe.host_links import Mesh, peers_of
from ddpdoctor.probe.hosts import Card, gloo_address
from ddpdoctor.probe.local_peers import Neighbours
from ddpdoctor.probe.local_supervisors import Siblings
from ddpdoctor.probe.rank_env import Place
from ddpdoctor.probe.store_keys import Board

__all__ = ["Company"]

REFRESH_SECONDS = 1.0
RARELY_SECONDS = 5.0
MOST_OFTEN = 1024
"""With more ranks than these, each asks its store RARELY_SECONDS apart whether it is still there."""
KNOCKS = 2
"""How often a process must not answer until it is taken for stopped: it may have been for a moment."""
SIBLINGS_SECONDS = 0.25
HEAD = "head"
"""The name under which the process that hosts the store leaves its card."""
NO_HOST = -1


class Company:
    """What one rank does to know of the others. `card` is set where it stands for its host; `news_fd`, where there is
    one, tells of nodes that are gone.
    """

    def __init__(self, place: Place, siblings: Siblings | None = None) -> None:
        self.place = place
        self.news_fd: int | None = None
        self._siblings = siblings
        self._next_siblings = 0.0
        self.neighbours = Neighbours(place.rank)
        self.hosts = 1
        self._card: Card | None = None
        self._echo: Echo | None = None
        self._pulse: Pulse | None = None
        self._mesh: Mesh | None = None
        self._seen_gone: list[Observation] = []
        self._head: Card | None = None
        self._answer: tuple[Kind | None, str] = (None, "")
        self._others: list[Card] = []
        self._has_met = False
        self._watches_store = False
        self._next = 0.0

    def enlist(self, board: Board) -> None:
        """Stand for this host where nobody does yet, and for the store where it is ours; on one host alone nobody needs that."""
        place = self.place
        if place.local_world_size == place.world_size:
            return
        is_first = board.is_first_of_host()
        if not is_first and not place.hosts_store:
            return
        self._echo = Echo()
        own = board.store.own_address
        card = Card(
            board.next_host() if is_first else NO_HOST,
            place.host,
            place.rank,
            os.getpid(),
            place.node_rank,
            place.local_rank,
            "" if is_loopback(own) else own,
            self._echo.port,
            self._echo.token,
            *gloo_address(os.environ),
        )
        if is_first:
            self._card = card
            board.post(card)
        if place.hosts_store:
            board.post(card, HEAD)

    def meet(self, board: Board) -> None:
        """All have come: watch this host's ranks, and try the links to the other hosts."""
        self._has_met = True
        self.neighbours.update(board.neighbours())
        self._find_head(board)
        self.hosts = board.count_hosts()
        self._watches_store = not self.place.uses_agent_store and self._is_head_here
        if self.hosts < 2 or self._card is None:
            return
        own, store = self._card, board.store.address
        cards = {index: card for index in peers_of(own.index, self.hosts) if (card := board.card(index))}
        self._others = list(cards.values())
        self._mesh = Mesh(own, self._others, store)
        mine = [cards[index] for index in watched(own.index, self.hosts) if index in cards]
        if self._head is not None and self.hosts <= MOST_AT_HEAD:
            mine = [*(card for card in mine if card.pid != self._head.pid or card.host != self._head.host), self._head]
            self._watches_store = True
        self._pulse = Pulse(own.rank, mine, store)
        self._seen_gone = self._pulse.found

    def _find_head(self, board: Board) -> None:
        """Get to know the process that hosts the store, where it is ours and on another host."""
        if self._head is None and not self.place.uses_agent_store and not self._is_head_here:
            self._head = board.card(HEAD)

    @property
    def _is_head_here(self) -> bool:
        return self.place.rank == 0 or any(each.rank == 0 for each in self.neighbours.others)

    @property
    def links_are_tried(self) -> bool:
        return self._mesh is None or self._mesh.is_done

    def links(self) -> list[Observation]:
        """What is wrong with the links from this host."""
        return self._mesh.found if self._mesh is not None else []

    def gloo(self) -> Observation | None:
        """Why Gloo cannot work with the address that it would publish here, None when it can."""
        if self.hosts < 2 and not os.environ.get("GLOO_SOCKET_IFNAME"):
            return None
        address, source = gloo_address(os.environ)
        if not source:
            return None
        given = f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}"
        if not address:
            return self._about_gloo(Kind.GLOO_NO_INTERFACE, f"{given} names no interface with an address", given)
        if self.hosts < 2 or not is_loopback(address):
            return None
        why = {
            "GLOO_SOCKET_IFNAME": f"{given} is the loopback",
            "hostname": f"the hostname resolves to {address}",
            "nothing": "the hostname leads to no address of this host, so Gloo takes the loopback",
        }[source]
        words = f"{why}: Gloo would publish {address}, which every other host takes for itself"
        return self._about_gloo(Kind.GLOO_LOOPBACK, words, given if source == "GLOO_SOCKET_IFNAME" else address)

    def _about_gloo(self, kind: Kind, words: str, value: str) -> Observation:
        words = f"on {self.place.host} {words}"
        return self.place.observe(kind, words, local_rank=None, phase="init", value=value)

    def refresh(self, board: Board, now: float) -> None:
        """Now and then, between waits: while ranks still come, watch those of this host that came meanwhile."""
        self._next = now + (REFRESH_SECONDS if self.place.world_size <= MOST_OFTEN else RARELY_SECONDS)
        if not self._has_met:
            self.neighbours.update(board.neighbours())
            self._find_head(board)

    def is_due(self, now: float) -> bool:
        """Whether to call a wait off and `refresh`: a store that was stopped shows only when it is asked something."""
        return now >= self._next and not (self._has_met and self._watches_store)

    def look(self, now: float, phase: str) -> Observation | None:
        """A rank of this host that does not run, or another host of which nothing is heard."""
        siblings = self._siblings
        if siblings is not None and not self._has_met and now >= self._next_siblings:
            self._next_siblings = now + SIBLINGS_SECONDS
            self.neighbours.update(siblings.alike())
        found = self.neighbours.look(now, phase)
        while found is not None and siblings is not None and found.pid in siblings.have_parted():
            self.neighbours.forget(siblings.have_parted())
            found = self.neighbours.look(now, phase)
        if found is None and self._pulse is not None and self._pulse.found:
            found = replace(self._cut_off() or self._pulse.found[0], phase=phase)
        if found is None and self.news_fd is not None and not self._has_met:
            found = node_notices.read(self.news_fd)
        return found

    def hush(self) -> None:
        """Watch the other hosts no longer: each one ends by itself now."""
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None

    def is_store_gone(self, store_address: str) -> bool:
        """Whether the process that hosts the store does not run, as far as that can be seen from here."""
        if self.place.uses_agent_store:
            return self._card is not None and (self._head_is_lost() is not None or self._is_cut_off(store_address))
        return self.neighbours.is_gone(0, time.monotonic()) or self._knock(store_address)[0] is not None

    def _knock(self, store_address: str) -> tuple[Kind | None, str]:
        """What is wrong with the process that hosts the store; asked until something is."""
        if self._answer[0] is None and self._head is not None:
            for _ in range(KNOCKS):
                self._answer = check_process(self._head.address or store_address, self._head)
                if self._answer[0] is not Kind.STOPPED:
                    break
        return self._answer

    def host_of_head(self) -> str | None:
        """The host of rank 0, where its agent hosts the store; None when it is not one of those known here."""
        if self._is_head_here:
            return self.place.host
        return next((card.host for card in self._others if card.rank == 0), None)

    def lost(self, store_address: str) -> Observation | None:
        """The store is gone: what is wrong with its host, or with this one; None when nothing is, or it is not known."""
        card, own = self._head, self._card
        kind, words = self._knock(store_address)
        may_be_cut = self.place.uses_agent_store or kind is Kind.HOST_LOST
        if own is not None and may_be_cut and self._is_cut_off((card and card.address) or store_address):
            return self._is_lost(own)
        if card is None or kind is None:
            return self._head_is_lost()
        return observe_host(card, kind, f"the supervisor on {card.host} that hosts the store {words}", self.place.rank)

    def _head_is_lost(self) -> Observation | None:
        """What was seen of the host of rank 0, whose agent hosts the store, when it went away."""
        return next((o for o in list(self._seen_gone) if o.kind is Kind.HOST_LOST and o.ranks == (0,)), None)

    def _cut_off(self) -> Observation | None:
        """That it is this host which is gone, where another one seems to be."""
        assert self._pulse is not None
        own, seen = self._card, self._pulse.found[0]
        address = next((card.address for card in self._others if card.host == seen.host), "")
        is_lost = own is not None and seen.kind is Kind.HOST_LOST and bool(address)
        return self._is_lost(own) if own is not None and is_lost and self._is_cut_off(address, seen.host) else None

    def _is_lost(self, own: Card) -> Observation:
        cut = f"{own.host} reaches no other host any more: its network is cut"
        return observe_host(own, Kind.HOST_LOST, cut, self.place.rank)

    def _is_cut_off(self, address: str, lost: str | None = None) -> bool:
        """Whether this host reaches nobody: it has no route any more, or of the others none answers, besides the one that is
        `lost`: without a name, the one that hosts the store.
        """
        if source_address(address) is None:
            return True
        lost = lost or (self._head.host if self._head is not None else None)
        others = [card for card in self._others if card.host != lost]
        return bool(others) and all(check_process(card.address, card)[0] is Kind.HOST_LOST for card in others[:3])

    def leave(self) -> None:
        """Watch and answer no longer."""
        self.hush()
        if self._echo is not None:
            self._echo.close()
