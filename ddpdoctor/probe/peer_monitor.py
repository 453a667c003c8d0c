"""Watches the other ranks: those of this host through /proc, the other hosts with heartbeats and link checks."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.network.connect import source_address
from ddpdoctor.probe import node_notices
from ddpdoctor.probe.echo import EchoServer
from ddpdoctor.probe.heartbeat import MOST_AT_HEAD, Heartbeat, check_process, observe_host, watched
from ddpdoctor.probe.host_links import LinkChecks, peers_of
from ddpdoctor.probe.hosts import HostCard, gloo_address
from ddpdoctor.probe.local_peers import LocalPeers
from ddpdoctor.probe.local_supervisors import LocalSupervisors
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

__all__ = ["PeerMonitor"]

REFRESH_SECONDS = 1.0
RARELY_SECONDS = 5.0
MOST_OFTEN = 1024
"""With more ranks than this, each checks only every RARELY_SECONDS whether its store still responds."""
CHECKS = 2
"""How often in a row a process must not answer to count as suspended: it may be suspended briefly."""
SUPERVISORS_SECONDS = 0.25
HEAD = "head"
"""The key under which the process that hosts the store publishes its card."""
NO_HOST = -1


class PeerMonitor:
    """One rank's monitoring of the others. `card` is set if it represents its host; `notices_fd`, if set, has notices
    about lost nodes.
    """

    def __init__(self, rank_env: RankEnv, supervisors: LocalSupervisors | None = None) -> None:
        self.rank_env = rank_env
        self.notices_fd: int | None = None
        self._supervisors = supervisors
        self._next_supervisors = 0.0
        self.local_peers = LocalPeers(rank_env.rank)
        self.hosts = 1
        self._card: HostCard | None = None
        self._echo: EchoServer | None = None
        self._heartbeat: Heartbeat | None = None
        self._link_checks: LinkChecks | None = None
        self._seen_gone: list[Observation] = []
        self._head: HostCard | None = None
        self._answer: tuple[Kind | None, str] = (None, "")
        self._others: list[HostCard] = []
        self._has_met = False
        self._watches_store = False
        self._next = 0.0

    def register_host(self, store_keys: StoreKeys) -> None:
        """Represent this host if no rank does yet, and the store if this process hosts it; not needed on a single host."""
        rank_env = self.rank_env
        if rank_env.local_world_size == rank_env.world_size:
            return
        is_first = store_keys.is_first_of_host()
        if not is_first and not rank_env.hosts_store:
            return
        self._echo = EchoServer()
        own = store_keys.store.own_address
        card = HostCard(
            store_keys.next_host() if is_first else NO_HOST,
            rank_env.host,
            rank_env.rank,
            os.getpid(),
            rank_env.node_rank,
            rank_env.local_rank,
            "" if is_loopback(own) else own,
            self._echo.port,
            self._echo.token,
            *gloo_address(os.environ),
        )
        if is_first:
            self._card = card
            store_keys.post(card)
        if rank_env.hosts_store:
            store_keys.post(card, HEAD)

    def watch_peers(self, store_keys: StoreKeys) -> None:
        """After all ranks joined: watch this host's ranks, and check the links to the other hosts."""
        self._has_met = True
        self.local_peers.update(store_keys.local_peers())
        self._find_head(store_keys)
        self.hosts = store_keys.count_hosts()
        self._watches_store = not self.rank_env.uses_agent_store and self._is_head_here
        if self.hosts < 2 or self._card is None:
            return
        own, store = self._card, store_keys.store.address
        cards = {index: card for index in peers_of(own.index, self.hosts) if (card := store_keys.card(index))}
        self._others = list(cards.values())
        self._link_checks = LinkChecks(own, self._others, store)
        mine = [cards[index] for index in watched(own.index, self.hosts) if index in cards]
        if self._head is not None and self.hosts <= MOST_AT_HEAD:
            mine = [*(card for card in mine if card.pid != self._head.pid or card.host != self._head.host), self._head]
            self._watches_store = True
        self._heartbeat = Heartbeat(own.rank, mine, store)
        self._seen_gone = self._heartbeat.found

    def _find_head(self, store_keys: StoreKeys) -> None:
        """Read the card of the process that hosts the store, if that is a supervisor on another host."""
        if self._head is None and not self.rank_env.uses_agent_store and not self._is_head_here:
            self._head = store_keys.card(HEAD)

    @property
    def _is_head_here(self) -> bool:
        return self.rank_env.rank == 0 or any(peer.rank == 0 for peer in self.local_peers.others)

    @property
    def links_are_checked(self) -> bool:
        return self._link_checks is None or self._link_checks.is_done

    def links(self) -> list[Observation]:
        """The problems of the links from this host."""
        return self._link_checks.found if self._link_checks is not None else []

    def gloo(self) -> Observation | None:
        """Why Gloo cannot work with the address that it would advertise here, None if it can."""
        if self.hosts < 2 and not os.environ.get("GLOO_SOCKET_IFNAME"):
            return None
        address, source = gloo_address(os.environ)
        if not source:
            return None
        given = f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}"
        if not address:
            return self._about_gloo(Kind.GLOO_NO_INTERFACE, f"{given} matches no interface with an address", given)
        if self.hosts < 2 or not is_loopback(address):
            return None
        why = {
            "GLOO_SOCKET_IFNAME": f"{given} is the loopback interface",
            "hostname": f"the hostname resolves to {address}",
            "nothing": "the hostname resolves to no address of this host",
        }[source]
        problem = f"{why}, so Gloo would publish {address}"
        return self._about_gloo(Kind.GLOO_LOOPBACK, problem, given if source == "GLOO_SOCKET_IFNAME" else address)

    def _about_gloo(self, kind: Kind, problem: str, value: str) -> Observation:
        message = f"on {self.rank_env.host}, {problem}"
        return self.rank_env.observe(kind, message, local_rank=None, phase="init", value=value)

    def refresh(self, store_keys: StoreKeys, now: float) -> None:
        """Called between waits: until all ranks have joined, watch the new ones of this host."""
        self._next = now + (REFRESH_SECONDS if self.rank_env.world_size <= MOST_OFTEN else RARELY_SECONDS)
        if not self._has_met:
            self.local_peers.update(store_keys.local_peers())
            self._find_head(store_keys)

    def is_due(self, now: float) -> bool:
        """Whether to cancel a wait and `refresh`: a suspended store is only noticed when it gets a request."""
        return now >= self._next and not (self._has_met and self._watches_store)

    def look(self, now: float, phase: str) -> Observation | None:
        """A rank of this host that does not run, or another host that does not respond."""
        supervisors = self._supervisors
        if supervisors is not None and not self._has_met and now >= self._next_supervisors:
            self._next_supervisors = now + SUPERVISORS_SECONDS
            self.local_peers.update(supervisors.peers())
        observation = self.local_peers.look(now, phase)
        while observation is not None and supervisors is not None and observation.pid in supervisors.left_pids():
            self.local_peers.forget(supervisors.left_pids())
            observation = self.local_peers.look(now, phase)
        if observation is None and self._heartbeat is not None and self._heartbeat.found:
            observation = replace(self._cut_off() or self._heartbeat.found[0], phase=phase)
        if observation is None and self.notices_fd is not None and not self._has_met:
            observation = node_notices.read(self.notices_fd)
        return observation

    def stop_heartbeat(self) -> None:
        """Stop watching the other hosts: each one ends by itself now."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def is_store_gone(self, store_address: str) -> bool:
        """Whether the process that hosts the store does not run, as far as this rank can see."""
        if self.rank_env.uses_agent_store:
            return self._card is not None and (self._head_is_lost() is not None or self._is_cut_off(store_address))
        return self.local_peers.is_gone(0, time.monotonic()) or self._check_head(store_address)[0] is not None

    def _check_head(self, store_address: str) -> tuple[Kind | None, str]:
        """The problem with the process that hosts the store; checked until there is one."""
        if self._answer[0] is None and self._head is not None:
            for _ in range(CHECKS):
                self._answer = check_process(self._head.address or store_address, self._head)
                if self._answer[0] is not Kind.STOPPED:
                    break
        return self._answer

    def host_of_head(self) -> str | None:
        """The host of rank 0, whose agent hosts the store; None if it is not known here."""
        if self._is_head_here:
            return self.rank_env.host
        return next((card.host for card in self._others if card.rank == 0), None)

    def lost(self, store_address: str) -> Observation | None:
        """After the store was lost: the problem with its host, or with this one; None if there is none or it is unknown."""
        card, own = self._head, self._card
        kind, problem = self._check_head(store_address)
        may_be_cut = self.rank_env.uses_agent_store or kind is Kind.HOST_LOST
        if own is not None and may_be_cut and self._is_cut_off((card and card.address) or store_address):
            return self._is_lost(own)
        if card is None or kind is None:
            return self._head_is_lost()
        return observe_host(
            card, kind, f"the supervisor on {card.host} that hosts the store {problem}", self.rank_env.rank
        )

    def _head_is_lost(self) -> Observation | None:
        """The observation that the host of rank 0, whose agent hosts the store, was lost."""
        return next((o for o in list(self._seen_gone) if o.kind is Kind.HOST_LOST and o.ranks == (0,)), None)

    def _cut_off(self) -> Observation | None:
        """The observation that this host is cut off, if another host seems to be lost."""
        assert self._heartbeat is not None
        own, seen = self._card, self._heartbeat.found[0]
        address = next((card.address for card in self._others if card.host == seen.host), "")
        is_lost = own is not None and seen.kind is Kind.HOST_LOST and bool(address)
        return self._is_lost(own) if own is not None and is_lost and self._is_cut_off(address, seen.host) else None

    def _is_lost(self, own: HostCard) -> Observation:
        cut = f"{own.host} can no longer reach any other host (its network failed)"
        return observe_host(own, Kind.HOST_LOST, cut, self.rank_env.rank)

    def _is_cut_off(self, address: str, lost: str | None = None) -> bool:
        """Whether this host reaches no other host: it has no route any more, or none answers apart from `lost`, by default the
        host of the store.
        """
        if source_address(address) is None:
            return True
        lost = lost or (self._head.host if self._head is not None else None)
        others = [card for card in self._others if card.host != lost]
        return bool(others) and all(check_process(card.address, card)[0] is Kind.HOST_LOST for card in others[:3])

    def leave(self) -> None:
        """Stop watching and answering."""
        self.stop_heartbeat()
        if self._echo is not None:
            self._echo.close()
