"""The other ranks as far as they are watched: those of this host through /proc, the other hosts by pulse and mesh."""

from __future__ import annotations

import os

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.board import Board
from ddpdoctor.probe.echo import Echo
from ddpdoctor.probe.hosts import Card, gloo_address, is_loopback
from ddpdoctor.probe.mesh import Mesh, peers_of
from ddpdoctor.probe.neighbours import Neighbours
from ddpdoctor.probe.place import Place
from ddpdoctor.probe.pulse import BEAT_SECONDS, Pulse

__all__ = ["Company"]


class Company:
    """What one rank does to know of the others. `card` is set where it stands for its host."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.neighbours = Neighbours(place.rank)
        self.hosts = 1
        self.head: Card | None = None
        """The host of rank 0, as soon as it is known."""
        self._card: Card | None = None
        self._echo: Echo | None = None
        self._pulse: Pulse | None = None
        self._mesh: Mesh | None = None
        self._has_met = False
        self._next = 0.0

    def enlist(self, board: Board) -> None:
        """Stand for this host where nobody does yet; a job that is on one host alone needs no such thing."""
        place = self.place
        if place.local_world_size == place.world_size or not board.is_first_of_host():
            return
        self._echo = Echo()
        own = board.store.own_address
        self._card = Card(
            board.next_host(),
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
        board.post(self._card)
        self._pulse = Pulse(board, self._card)

    def meet(self, board: Board) -> None:
        """All have come: watch this host's ranks, and try the links to the other hosts."""
        self._has_met = True
        self.neighbours.update(board.neighbours())
        self.hosts = board.count_hosts()
        if self.hosts < 2:
            self._pulse = None
            return
        self.head = board.card(0)
        if self._card is not None:
            cards = [board.card(index) for index in peers_of(self._card.index, self.hosts)]
            self._mesh = Mesh(self._card, [card for card in cards if card], board.store.address)

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
        place = self.place
        return Observation(
            kind,
            f"on {place.host} {words}",
            ranks=(place.rank,),
            seen_by=place.rank,
            host=place.host,
            node_rank=place.node_rank,
            phase="init",
            value=value,
        )

    def is_due(self, now: float) -> bool:
        """Whether it is time to `beat`."""
        return now >= self._next and (self._pulse is not None or not self._has_met)

    def beat(self, board: Board, now: float, phase: str) -> Observation | None:
        """Give a sign of life, and look at those of others; a host that gives none any more."""
        self._next = now + BEAT_SECONDS
        if not self._has_met:
            self.neighbours.update(board.neighbours())
        return self._pulse.beat(now, phase) if self._pulse is not None else None

    def look(self, now: float, phase: str) -> Observation | None:
        """A rank of this host that does not run."""
        return self.neighbours.look(now, phase)

    def leave(self) -> None:
        """Answer no longer."""
        if self._echo is not None:
            self._echo.close()
