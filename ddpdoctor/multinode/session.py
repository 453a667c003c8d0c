"""One node's session from its start to the verdict, as host or as member.

The host is the node that the launch line names: it listens on the job's own address and port. Every node also listens on
a side port of ddpdoctor: nodes with different ports, or behind a firewall that blocks the job's port, still find each
other at the given address, and report why.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.client import MemberClient
from ddpdoctor.multinode.host import SessionHost
from ddpdoctor.multinode.host_discovery import SIDE_PORTS, HostDiscovery
from ddpdoctor.multinode.link_plan import dialled
from ddpdoctor.multinode.link_survey import is_silent, survey
from ddpdoctor.multinode.liveness import ranks_of, watch_members
from ddpdoctor.multinode.members import (
    Member,
    SessionState,
    assess,
    contradicts,
    expected,
    membership_text,
    missing,
    of_another_job,
    ordered,
    still_gone,
)
from ddpdoctor.multinode.messages import WireError
from ddpdoctor.multinode.results import Judge, LostNode, NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.multinode.udp_discovery import announce_leaving, leave_message, listen_for_requests
from ddpdoctor.multinode.udp_responder import UdpResponder
from ddpdoctor.network.file_limits import raise_file_limit

__all__ = ["MemberSession"]

SURE_OF_SILENT_SECONDS = 6.0
"""The same as SURE_SECONDS for a host that accepts the connection but is silent: it may be very slow."""
GRACE_SECONDS = 2.5
"""How long to wait for more nodes after a problem was found."""
SETTLE_SECONDS = 0.6
"""How long the membership must be stable before nodes that all joined at the side port are judged."""
MORE_SECONDS = 3.0
"""How long to wait for more nodes of an elastic job."""
SURE_SECONDS = 3.0
"""How long to retry after an answer that rarely changes (no such name, no route, another program)."""
MOST_FILES = 1 << 16
"""Every node needs a connection, and port scanners may take more."""
MANY_MEMBERS_SECONDS = 0.02
"""How often the membership is checked when there are too many nodes to check for each."""
MARGIN_SECONDS = 8.0
"""How long a member waits beyond its host's own time limit, for the link tests and the verdict."""
MOST_NOTIFIED = 64
"""With more nodes than this, only the host shows which nodes joined."""


@dataclass
class MemberSession:
    """`main` is the socket on the job's port, None for a node that does not host the store or could not bind the port.

    `is_patient`: names may become resolvable late, as those of pods do. `say` gets a line about which nodes joined.
    """

    me: Member
    token: str
    join_seconds: float
    own_addresses: frozenset[str]
    main: socket.socket | None = None
    is_patient: bool = False
    say: Callable[[str], None] = lambda words: None
    patience: float = 30.0
    """The join timeout that the user gave, for messages: part of it passed before the session began."""
    explain: Callable[[], list[dict[str, Any]]] = list
    """Findings about this node's connection to the master, computed only if it failed."""
    hosts: tuple[str, ...] = ()
    """The names of the job's nodes, if the scheduler lists them."""
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Additional fields per member, by its key, sent with the verdict: set before the verdict."""
    watches: bool = False
    """As the host: all stay connected after the verdict until their ranks have joined. Set before the verdict."""
    authentication: Authentication = field(default_factory=Authentication)
    lost: Callable[[LostNode], None] = lambda lost: None
    """Called with each node that is lost after the verdict."""
    _watched: dict[str, LostNode] = field(default_factory=dict)
    """The nodes and their ranks, by the nodes' keys."""
    _began: float = field(default_factory=time.monotonic)
    _wrong_since: float | None = None
    _count: int = 0
    _count_since: float = 0.0
    _spoken: str = ""

    async def run(
        self, judge: Judge, settled: Callable[[ReceivedVerdict | NotJoined | None], None] = lambda met: None
    ) -> ReceivedVerdict | NotJoined | None:
        """Run the session. On the host, `judge` is called with the result; its verdict is sent to all, and None returned.

        `settled` is called with the return value. If the nodes watch each other, this runs until it is cancelled.
        """
        files = raise_file_limit(MOST_FILES)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda loop, context: None
        )  # errors on connections of other programs are not for the terminal
        self._changed = asyncio.Event()
        self._verdict: asyncio.Future[dict[str, Any]] = loop.create_future()
        node = self.me.node
        self.authentication.node = {"host": node.host, "script": node.script, "rdzv_id": node.rdzv_id}
        self.host = SessionHost(
            self.me, self.token, self._changed, files, lambda: self.left, lambda: self.client.host_address
        )
        self.client = MemberClient(self.token, self._on_joined, self._on_verdict, self._speak, self.lost)
        self.host.authentication = self.client.authentication = self.authentication
        self.discovery = HostDiscovery(
            self.host, self.client, self.own_addresses, self._changed.set, self.hosts, self.explain
        )
        self._open()
        self.responder = UdpResponder(self.host, self.discovery, self._changed.set)
        udp = await listen_for_requests(self.responder.answer)
        seeking = asyncio.create_task(self.discovery.run())
        try:
            outcome = await self._until_verdict(judge)
            self.host.close_ports()
            settled(outcome)
            if outcome is None and self._watched:
                await watch_members(self.host, self._watched, self.lost)
            elif isinstance(outcome, ReceivedVerdict) and "watch" in outcome.verdict:
                await seeking
            return outcome
        finally:
            seeking.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, WireError):
                await seeking
            if udp is not None:
                udp.close()
            await self.responder.close()
            await self.host.close()

    @property
    def left(self) -> float:
        """Seconds until the join timeout."""
        return self._began + self.join_seconds - time.monotonic()

    def _open(self) -> None:
        """Open the main port before the side port, whose clients are told whether the main port is open."""
        if self.main is not None:
            self.host.open("main", self.main)
        port = self.host.open_echo(dialled(self.me.node))
        for side_port in SIDE_PORTS:
            try:
                self.host.open("door", side_port)
                self.discovery.side_port = side_port
                break
            except OSError:
                continue
        self.host.me = replace(self.me, echo_port=port, has_main=self.main is not None)

    async def _until_verdict(self, judge: Judge) -> ReceivedVerdict | NotJoined | None:
        while not self._verdict.done():
            if self.client.is_member:
                if self.left < -MARGIN_SECONDS:
                    return self._alone()
            elif self.discovery.hosts and (self.host.has("main") or self.host.connections):
                if await self._is_over():
                    await self._finish(judge)
                    return None
            elif self._gives_up():
                return await self._leave()
            if len(self.host.connections) > MOST_NOTIFIED:
                await asyncio.sleep(MANY_MEMBERS_SECONDS)
            await self.host.change()
        verdict = self._verdict.result()
        await self.host.broadcast(verdict)  # to nodes that had found this node only
        return ReceivedVerdict(verdict)

    async def _leave(self) -> NotJoined:
        """No other node was found: announce why."""
        outcome = self._alone()
        if outcome.taken_by is None and outcome.other_job is None and (errors := await self.discovery.reasons()):
            message = await self.authentication.signed(leave_message(self.host.me, self.token, errors))
            await announce_leaving(message, await self.discovery.others())
        return outcome

    def _alone(self) -> NotJoined:
        client = self.client
        waited = self.patience if self.left <= 0 else round(time.monotonic() - self._began, 1)
        way = self.discovery.way
        is_silent = way is ConnectOutcome.SILENT and self.discovery.is_host_silent
        lost = client.lost_host or (self.me.node.master_addr if is_silent else None)
        other = client.other_proof or client.other_version
        return NotJoined(self.host.me, way, waited, client.other_job, other, client.taken_by, lost)

    def _on_joined(self, seconds: float) -> None:
        """A member waits as long as its host does, and its own members join that host as well."""
        self.discovery.way = None
        self.join_seconds = max(self.join_seconds, time.monotonic() - self._began + seconds)
        self.host.disconnect()
        self._changed.set()

    def _on_verdict(self, verdict: dict[str, Any]) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)
        self._changed.set()

    def _gives_up(self) -> bool:
        """Whether no other node was found, and waiting would not help."""
        if self.left <= 0:
            return True
        discovery, now = self.discovery, time.monotonic()
        if self.client.taken_by is not None:
            return True
        if self.client.other_since is not None:
            return now - self.client.other_since > SURE_SECONDS
        if self.client.lost_host is not None and discovery.way is not None:
            return now - discovery.since > SURE_SECONDS
        if discovery.way is None or self.me.node.owns or self.client.is_lossy:
            return False
        if discovery.way is ConnectOutcome.REFUSED or (self.is_patient and not discovery.addresses):
            return bool(self.me.errors) and now - self._began > GRACE_SECONDS
        return now - discovery.since > (SURE_OF_SILENT_SECONDS if discovery.is_host_silent else SURE_SECONDS)

    async def _is_over(self) -> bool:
        """Whether all nodes joined, or the wait for them is over."""
        members = self.host.members
        others = of_another_job(members, self.me.node.master_port)
        self.host.disconnect(others)
        members = [member for member in members if member.key not in others]
        state, now = assess(members), time.monotonic()
        if len(members) != self._count:
            self._count, self._count_since = len(members), now
            await self._show(members)
        is_wrong = bool(self.me.errors) or (contradicts(members) and len(members) > 1)
        gone = still_gone(self.responder.gone.values(), members)
        is_other = any(stranger.protocol is not None for stranger in self.host.strangers)
        is_wrong = is_wrong or bool(gone) or (is_other and not self.authentication.proves)  # that has no proof
        self._wrong_since = (self._wrong_since or now) if is_wrong else None
        if self.left <= 0 or (gone and len(members) + len(gone) >= expected([g.node for g in members])):
            return True
        if state is SessionState.COMPLETE:
            is_clear = self.host.has("main") and all(member.node.came == "main" for member in members)
            is_clear = is_clear or any(member.errors for member in members)
            return is_clear or now - self._count_since > SETTLE_SECONDS
        if state is SessionState.ENOUGH:
            return now - self._count_since > MORE_SECONDS
        return self._wrong_since is not None and now - self._wrong_since > GRACE_SECONDS

    async def _show(self, members: Sequence[Member]) -> None:
        """Show which nodes joined and which are missing."""
        text = membership_text(members)
        self._speak(text)
        if len(members) <= MOST_NOTIFIED:
            await self.host.broadcast({"kind": "progress", "words": text})

    def _speak(self, words: str) -> None:
        if words != self._spoken:
            self._spoken = words
            self.say(words)

    async def _finish(self, judge: Judge) -> None:
        """Run the link tests if no problem was found, get the verdict, close the ports, then send the verdict."""
        self.host.is_full = True
        members = ordered(self.host.members)
        is_enough = assess(members) in (SessionState.COMPLETE, SessionState.ENOUGH)
        is_well = is_enough and not contradicts(members)
        links = await survey(self.host, members) if is_well and len(members) > 1 else ()
        silent = {at for at, member in enumerate(members) if is_well and is_silent(self.host, member)}
        nodes = [member.node for member in members]
        gone = still_gone(self.responder.gone.values(), members)
        theirs = {member.node.node_rank if member.node.rank is None else member.node.rank for member in gone}
        size, is_late = expected(nodes), self.left <= 0 and not is_well
        self._verdict = judge(
            SessionResult(
                members=tuple(members),
                links=tuple(link for link in links if not silent & {link.source, link.target}),
                expected=size,
                missing=tuple(n for n in missing(nodes) if n not in theirs) if is_late else (),
                lacking=max(size - len(nodes) - len(gone), 0) if is_late else 0,
                waited_seconds=self.patience if is_late else round(time.monotonic() - self._began, 1),
                hosted_by=next(i for i, member in enumerate(members) if member.key == self.me.key),
                is_main=self.host.has("main"),
                strangers=tuple(self.host.strangers),
                silent=tuple(sorted(silent)),
                left=tuple(self.host.left.values()),
                absent=() if is_enough else missing(nodes),
                absent_count=0 if is_enough else max(size - len(nodes), 0),
                gone=tuple(gone),
            )
        )
        verdict = await self._verdict
        if self.watches:
            self._watched = {member.key: ranks_of(member, self.places.get(member.key, {})) for member in members}
            verdict = {**verdict, "watch": encode(self._watched[self.me.key])}
        self.host.close_ports()
        await self.host.broadcast(verdict, self.places)
