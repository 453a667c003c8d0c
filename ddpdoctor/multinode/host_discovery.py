"""Finds the host: at the job's own address and port, else at the side ports of the machine that has the address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from ddpdoctor.facts.addresses import is_loopback as is_loopback_name
from ddpdoctor.facts.net import is_loopback
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.reachability import ConnectOutcome, Lookup
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode import udp_discovery
from ddpdoctor.multinode.client import SILENT, MemberClient
from ddpdoctor.multinode.host import SessionHost
from ddpdoctor.network.aio import call_in_thread, look_up

__all__ = ["SIDE_PORTS", "HostDiscovery"]

SIDE_PORTS = range(udp_discovery.PORT, udp_discovery.PORT + 4)
"""The side ports: below the ephemeral range, one per ddpdoctor session on this machine."""
CONFIRM_SECONDS = 1.0
"""How long the main port is retried after the side port reported that it is open."""
CONFIRM_PATIENCE = 1.3
"""Long enough for a lost SYN, which the kernel retransmits after 1 s."""
OTHER_PORT_SECONDS = 1.5
"""How long a node tries its own port before it uses the side port of a node with a different port."""
RESOLVE_SECONDS = 2.0
KNOWN_SECONDS = 0.2
"""How long to wait for the resolver for a name that it has already resolved."""
LOOKUP_SECONDS = 20.0
RETRY_SECONDS = 0.15
LEAST_PATIENCE = 0.9
MOST_PATIENCE = 4.0
FROM_ICMP = (ConnectOutcome.PROHIBITED, ConnectOutcome.NO_HOST, ConnectOutcome.NO_ROUTE, ConnectOutcome.REFUSED)
ICMP_SECONDS = 5.0
DISCOVER_AFTER_SECONDS = 1.5
"""Discovery starts after this delay, because the host may only be late; without a delay if the name does not resolve."""
DISCOVER_PAUSE_SECONDS = 0.6
EXPLAIN_SECONDS = 4.0
UNREACHABLE = (ConnectOutcome.FAILED, ConnectOutcome.NO_ROUTE, ConnectOutcome.NO_HOST)
WITHOUT_ANSWER = {*UNREACHABLE, ConnectOutcome.NO_ANSWER}
"""Outcomes without any answer: NO_ANSWER may turn into another of them later."""


@dataclass
class HostDiscovery:
    """`way` is the outcome of the last attempt at the main address and port, None before the first one.

    `since` is the time since when it has been so; `addresses` are the resolver's last answer. `hosts`: this node is the
    one that the others would try to join.
    """

    host: SessionHost
    client: MemberClient
    own_addresses: frozenset[str]
    changed: Callable[[], None]
    hosts_of_job: tuple[str, ...] = ()
    """The names of the job's nodes, if the scheduler lists them."""
    explain: Callable[[], list[dict[str, Any]]] = list
    """Findings about this node's connection to the master; may take a few seconds."""
    side_port: int | None = None
    way: ConnectOutcome | None = None
    since: float = field(default_factory=time.monotonic)
    addresses: tuple[str, ...] = ()
    is_host_silent: bool = False
    """A side port at the master's address is open too but does not answer: the host is suspended, or very slow."""
    hosts: bool = False
    began: float = field(default_factory=time.monotonic)
    _tries: int = 0
    _lookup: asyncio.Task[Lookup] | None = None
    _others: asyncio.Task[tuple[str, ...]] | None = None
    _discover_at: float = 0.0
    _pause: float = DISCOVER_PAUSE_SECONDS
    _why: asyncio.Task[list[dict[str, Any]] | None] | None = None
    """The running diagnosis of the failed connection."""

    async def run(self) -> None:
        """Search for the host until its verdict arrives; ends early if this node is the host itself."""
        node = self.host.me.node
        if node.master_addr is None or node.master_port is None:
            return
        while not self.client.is_over:
            await self._resolve(node.master_addr)
            is_here = any(map(self._is_own, self.addresses))
            me, known = self.host.me, (is_here, self.addresses)
            if self.addresses and (me.node.is_at_master, me.node.master_addresses) != known:
                changed_node = replace(me.node, is_at_master=is_here, master_addresses=self.addresses)
                self.host.me = replace(me, node=changed_node)
            if self.host.has("main") and (is_here or await self._leads_back(node.master_port)):
                self.way = None
                self._become_host()
                await self._find_other_host()
                return
            if not await self._try_main(node.master_port):
                await self._try_side_ports(is_here, node.master_port)
                await self._discover()
            self._tries += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _resolve(self, name: str) -> None:
        """Resolve the name. While a slow lookup is running, no second one is started, and the previous answer is used."""
        self._read_lookup()
        if self._lookup is None:
            self._lookup = asyncio.create_task(look_up(name, LOOKUP_SECONDS))
        await asyncio.wait({self._lookup}, timeout=KNOWN_SECONDS if self.addresses else RESOLVE_SECONDS)
        self._read_lookup()

    def _read_lookup(self) -> None:
        if self._lookup is not None and self._lookup.done():
            self.addresses = self._lookup.result().addresses
            self._lookup = None

    @property
    def _is_resolving(self) -> bool:
        """Whether the first lookup is still running, so that nothing is known about the name."""
        return self._lookup is not None and not self.addresses

    @property
    def _patience(self) -> float:
        """The first attempt is short, so that the side port is tried soon; later ones wait for a busy host."""
        return min(LEAST_PATIENCE * (1 + self._tries), MOST_PATIENCE)

    def _is_own(self, address: str) -> bool:
        bare = address.partition("%")[0].removeprefix("::ffff:")
        return is_loopback(bare) or bare in self.own_addresses

    def _become_host(self) -> None:
        self.hosts = True
        self.changed()

    async def _find_other_host(self) -> None:
        """As a host without members: search for another node that also considers itself the host of this endpoint. The one
        with the larger key joins the other.
        """
        me, pause = self.host.me, DISCOVER_AFTER_SECONDS
        if me.node.form != Form.C10D or is_loopback_name(me.node.master_addr or ""):
            return
        while not self.host.connections and not self.host.is_full:
            await asyncio.sleep(pause)
            pause *= 2
            found = await udp_discovery.discover(
                udp_discovery.discovery_request(me, self.client.token), await self.others()
            )
            if found is None or found[1] is None:
                continue
            identity = await self.client.identify(found[0], found[1])
            if identity.get("kind") == "i-am" and identity.get("owns") is True and str(identity.get("key")) < me.key:
                await self.client.join(self.host.me, found[0], found[1], None, MOST_PATIENCE)

    async def _leads_back(self, port: int) -> bool:
        """Whether the endpoint is forwarded to this node although it does not have the address: a service or a floating IP."""
        for address in self.addresses:
            if (await self.client.identify(address, port)).get("key") == self.host.me.key:
                return True
        return False

    async def _try_main(self, port: int) -> bool:
        """Join at the job's own address and port; whether there was a host, whose session then ended or was lost."""
        if not self.addresses and not self._is_resolving:
            self._note(ConnectOutcome.FAILED)
        for address in self.addresses:
            outcome = await self.client.join(self.host.me, address, port, None, self._patience)
            if outcome is None:
                return True
            self._note(outcome)
        return False

    def _note(self, outcome: ConnectOutcome) -> None:
        """Remember an outcome. The kernel sends one ICMP message per second, so a timeout soon after one is ignored."""
        if (
            outcome is ConnectOutcome.NO_ANSWER
            and self.way in FROM_ICMP
            and time.monotonic() - self.since < ICMP_SECONDS
        ):
            return
        if self.way is not outcome:
            if not {self.way, outcome} <= WITHOUT_ANSWER:
                self.since = time.monotonic()
            self.way = outcome
            if outcome in WITHOUT_ANSWER:
                self._why = asyncio.create_task(call_in_thread(self.explain, EXPLAIN_SECONDS))

    async def _try_side_ports(self, is_here: bool, port: int) -> None:
        """Join at a side port of the endpoint's machine: that of the node with the main port, else the lowest."""
        for address in self.addresses:
            side_ports = await self._list_side_ports(address, is_here)
            chosen = next(
                (side_port for side_port, there in side_ports.items() if there.get("has_main")),
                min(side_ports, default=None),
            )
            if is_here and (
                chosen is None
                or (self.side_port is not None and self.side_port < chosen and not side_ports[chosen]["has_main"])
            ):
                self._become_host()  # nodes without any other path join here
                return
            if chosen is None:
                continue
            further = side_ports[chosen].get("guest_at")
            if isinstance(further, str) and await self._follow(further):
                return
            is_same = side_ports[chosen].get("port") == port
            if not is_same and time.monotonic() - self.began < OTHER_PORT_SECONDS:
                continue  # perhaps another job's: this job's host may only be late
            is_open = bool(side_ports[chosen].get("has_main")) and is_same
            if is_open and await self._confirms(address, port):
                return
            way = self.way if is_open else None
            if await self.client.join(self.host.me, address, chosen, way, MOST_PATIENCE) is None:
                return
        self.hosts = self.host.has("main")

    async def _follow(self, address: str) -> bool:
        """Join the host that a node of this job has found at another address; whether it was there."""
        side_port = await self._main_side_port(address)
        return (
            side_port is not None
            and await self.client.join(self.host.me, address, side_port, self.way, MOST_PATIENCE) is None
        )

    async def _main_side_port(self, address: str) -> int | None:
        """The side port of the node that has the job's port, among those of a machine."""
        side_ports = await self._list_side_ports(address, False)
        return next((side_port for side_port, there in side_ports.items() if there["has_main"]), None)

    async def _discover(self) -> None:
        """Broadcast a discovery request with increasing pauses, and join where the host answers, with this node's findings."""
        now = time.monotonic()
        if (
            self._is_resolving
            or now < self._discover_at
            or (self.way not in UNREACHABLE and now - self.began < DISCOVER_AFTER_SECONDS)
        ):
            return
        self._discover_at = now + self._pause
        self._pause = (
            DISCOVER_PAUSE_SECONDS if self.way in UNREACHABLE else self._pause * 2
        )  # in that case this node gives up soon
        found = await udp_discovery.discover(
            udp_discovery.discovery_request(self.host.me, self.client.token), await self.others()
        )
        if found is None:
            return
        address, side_port = found
        if side_port is None:
            side_port = await self._main_side_port(address)
        if side_port is not None:
            me = replace(self.host.me, errors=tuple(await self.reasons()))
            await self.client.join(me, address, side_port, None if me.node.is_at_master else self.way, MOST_PATIENCE)

    async def others(self) -> tuple[str, ...]:
        """The addresses of the job's nodes, if their names are known."""
        if self._others is None:
            self._others = asyncio.create_task(udp_discovery.addresses_of(self.hosts_of_job))
        return await asyncio.shield(self._others)

    async def reasons(self) -> list[dict[str, Any]]:
        """Findings about this node, and about its connection to the master if that failed."""
        errors = await self._why if self._why is not None else None
        own = self.host.me.errors
        return [*own, *(error for error in errors or () if error not in own)]

    async def _list_side_ports(self, address: str, is_here: bool) -> dict[int, dict[str, Any]]:
        """The side ports of a machine that belong to other nodes of this job, with the identity of each node."""
        found = {}
        for side_port in SIDE_PORTS:
            there = await self.client.identify(address, side_port) if side_port != self.side_port or not is_here else {}
            self.is_host_silent = bool(there) and there.get("kind") == SILENT
            if self.is_host_silent:
                break
            if there.get("kind") == "i-am" and there.get("key") != self.host.me.key:
                found[side_port] = {**there, "has_main": there.get("has_main") is True}
            elif not there and not is_here:
                break  # nothing at the first port: nothing at the others
        return found

    async def _confirms(self, address: str, port: int) -> bool:
        """The host reports that it listens on the main port: whether it is reachable there after a retry."""
        end = time.monotonic() + CONFIRM_SECONDS
        while time.monotonic() < end:
            outcome = await self.client.join(self.host.me, address, port, None, CONFIRM_PATIENCE)
            if outcome is None:
                return True
            self._note(outcome)
            await asyncio.sleep(RETRY_SECONDS)
        return False
