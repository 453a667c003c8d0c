"""One node's meeting from its start to the verdict: it hosts, or it is a guest.

The host is the node that the launch says: it listens at the job's own address and port. Every node also listens at a side
door, a port of the doctor's own: nodes that were told different ports, or that a firewall keeps from the job's port, still
find each other at the address that they were told, and learn why.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.client import Visitor
from ddpdoctor.multinode.host import Host
from ddpdoctor.multinode.host_discovery import DOORS, Seeker
from ddpdoctor.multinode.link_survey import is_silent, survey
from ddpdoctor.multinode.liveness import keep_watch, ranks_of
from ddpdoctor.multinode.members import (
    Guest,
    State,
    assess,
    contradicts,
    expected,
    missing,
    of_another_job,
    ordered,
    roll,
    still_gone,
)
from ddpdoctor.multinode.messages import WireError
from ddpdoctor.multinode.results import Alone, Gathered, Judge, Lost, Told
from ddpdoctor.multinode.udp_discovery import leave, leaving, listen_for_calls
from ddpdoctor.multinode.udp_responder import Callers
from ddpdoctor.network.file_limits import raise_file_limit

__all__ = ["Session"]

SURE_OF_SILENT_SECONDS = 6.0
"""The same for a host that lets this node in and says nothing: it may be very slow."""
GRACE_SECONDS = 2.5
"""How long others may still come when something is wrong already."""
SETTLE_SECONDS = 0.6
"""How long nothing may change before nodes that all came by the side door are judged."""
MORE_SECONDS = 3.0
"""How long an elastic job's further nodes are waited for."""
SURE_SECONDS = 3.0
"""How long an answer that will hardly change (no such name, no route, a stranger) is asked for again."""
MOST_FILES = 1 << 16
"""Every node is a connection, and so is every port scanner."""
CROWD_SECONDS = 0.02
"""Where more come than can be looked at one by one, they are looked at so often."""
MARGIN_SECONDS = 8.0
"""What a guest allows its host beyond the host's own deadline, for the tests of the network and the verdict."""
MOST_TOLD = 64
"""With more nodes than these only the host shows who has come."""


@dataclass
class Session:
    """`main` is the socket that holds the job's port, None for a node that does not host the store or could not have it.

    `is_patient`: names may appear late here, as those of pods do. `say` is given a line about who has come.
    """

    me: Guest
    token: str
    join_seconds: float
    own_addresses: frozenset[str]
    main: socket.socket | None = None
    is_patient: bool = False
    say: Callable[[str], None] = lambda words: None
    patience: float = 30.0
    """The time to join as the user gave it, for sentences: a part of it was over before the meeting began."""
    explain: Callable[[], list[dict[str, Any]]] = list
    """What is wrong with this node's way to the master, as findings, asked only where it is closed."""
    hosts: tuple[str, ...] = ()
    """The names of the job's nodes, where the scheduler told them."""
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each guest, by its key, is told besides the verdict: set before the verdict is."""
    watches: bool = False
    """As the host: all stay connected after the verdict, because their ranks are to meet. Set before the verdict is."""
    lost: Callable[[Lost], None] = lambda lost: None
    """Told of a node that goes then."""
    _watched: dict[str, Lost] = field(default_factory=dict)
    """The nodes and their ranks, by the nodes' keys."""
    _began: float = field(default_factory=time.monotonic)
    _wrong_since: float | None = None
    _count: int = 0
    _count_since: float = 0.0
    _spoken: str = ""

    async def run(
        self, judge: Judge, settled: Callable[[Told | Alone | None], None] = lambda met: None
    ) -> Told | Alone | None:
        """Meet. `judge` is called on the host, with what it gathered; its answer is told to all, and None returned.

        `settled` is called with what is returned; where all watch each other, this goes on until it is cancelled.
        """
        files = raise_file_limit(MOST_FILES)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda loop, context: None
        )  # how connections of strangers end is not for the terminal
        self._changed = asyncio.Event()
        self._verdict: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.host = Host(self.me, self.token, self._changed, files, lambda: self.left, lambda: self.visitor.seat)
        self.visitor = Visitor(self.token, self._is_seated, self._is_told, self._speak, self.lost)
        self.seeker = Seeker(self.host, self.visitor, self.own_addresses, self._changed.set, self.hosts, self.explain)
        self._open()
        self.callers = Callers(self.host, self.seeker, self._changed.set)
        calls = await listen_for_calls(self.callers.answer)
        seeking = asyncio.create_task(self.seeker.run())
        try:
            met = await self._meet(judge)
            self.host.close_ports("main", "door", "echo")
            settled(met)
            if met is None and self._watched:
                await keep_watch(self.host, self._watched, self.lost)
            elif isinstance(met, Told) and "watch" in met.verdict:
                await seeking
            return met
        finally:
            seeking.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, WireError):
                await seeking
            if calls is not None:
                calls.close()
            await self.host.close()

    @property
    def left(self) -> float:
        """Seconds until the time to join is over."""
        return self._began + self.join_seconds - time.monotonic()

    def _open(self) -> None:
        """The main door before the side door: who finds that one open is told whether this one is."""
        if self.main is not None:
            self.host.open("main", self.main)
        port = self.host.open("echo", 0)
        for door in DOORS:
            try:
                self.host.open("door", door)
                self.seeker.door = door
                break
            except OSError:
                continue
        self.host.me = replace(self.me, echo_port=port, has_main=self.main is not None)

    async def _meet(self, judge: Judge) -> Told | Alone | None:
        while not self._verdict.done():
            if self.visitor.is_seated:
                if self.left < -MARGIN_SECONDS:
                    return self._alone()
            elif self.seeker.hosts and (self.host.has("main") or self.host.seats):
                if await self._is_over():
                    await self._finish(judge)
                    return None
            elif self._gives_up():
                return await self._leave()
            if len(self.host.seats) > MOST_TOLD:
                await asyncio.sleep(CROWD_SECONDS)
            await self.host.change()
        verdict = self._verdict.result()
        await self.host.tell_all(verdict)  # to those who had found this node only
        return Told(verdict)

    async def _leave(self) -> Alone:
        """Nobody was met: whoever hears it is told why."""
        met = self._alone()
        if met.taken_by is None and met.other_job is None and (errors := await self.seeker.reasons()):
            await leave(leaving(self.host.me, self.token, errors), await self.seeker.others())
        return met

    def _alone(self) -> Alone:
        visitor = self.visitor
        waited = self.patience if self.left <= 0 else round(time.monotonic() - self._began, 1)
        way = self.seeker.way
        is_silent = way is ConnectOutcome.SILENT and self.seeker.is_host_silent
        lost = visitor.lost_host or (self.me.node.master_addr if is_silent else None)
        return Alone(self.host.me, way, waited, visitor.other_job, visitor.other_version, visitor.taken_by, lost)

    def _is_seated(self, seconds: float) -> None:
        """A guest waits as long as its host does, and who came to it goes to that host as well."""
        self.seeker.way = None
        self.join_seconds = max(self.join_seconds, time.monotonic() - self._began + seconds)
        self.host.send_away()
        self._changed.set()

    def _is_told(self, verdict: dict[str, Any]) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)
        self._changed.set()

    def _gives_up(self) -> bool:
        """Nobody was met, and waiting would change nothing."""
        if self.left <= 0:
            return True
        seeker, now = self.seeker, time.monotonic()
        if self.visitor.taken_by is not None:
            return True
        if self.visitor.other_since is not None:
            return now - self.visitor.other_since > SURE_SECONDS
        if self.visitor.lost_host is not None and seeker.way is not None:
            return now - seeker.since > SURE_SECONDS
        if seeker.way is None or self.me.node.owns or self.visitor.is_lossy:
            return False
        if seeker.way is ConnectOutcome.REFUSED or (self.is_patient and not seeker.addresses):
            return bool(self.me.errors) and now - self._began > GRACE_SECONDS
        return now - seeker.since > (SURE_OF_SILENT_SECONDS if seeker.is_host_silent else SURE_SECONDS)

    async def _is_over(self) -> bool:
        """Whether everybody has come, or has been waited for long enough."""
        guests = self.host.guests
        others = of_another_job(guests, self.me.node.master_port)
        self.host.send_away(others)
        guests = [guest for guest in guests if guest.key not in others]
        state, now = assess(guests), time.monotonic()
        if len(guests) != self._count:
            self._count, self._count_since = len(guests), now
            await self._show(guests)
        is_wrong = bool(self.me.errors) or (contradicts(guests) and len(guests) > 1)
        gone = still_gone(self.callers.gone.values(), guests)
        is_wrong = is_wrong or bool(gone) or any(each.protocol is not None for each in self.host.strangers)
        self._wrong_since = (self._wrong_since or now) if is_wrong else None
        if self.left <= 0 or (gone and len(guests) + len(gone) >= expected([g.node for g in guests])):
            return True
        if state is State.COMPLETE:
            is_clear = self.host.has("main") and all(guest.node.came == "main" for guest in guests)
            is_clear = is_clear or any(guest.errors for guest in guests)
            return is_clear or now - self._count_since > SETTLE_SECONDS
        if state is State.ENOUGH:
            return now - self._count_since > MORE_SECONDS
        return self._wrong_since is not None and now - self._wrong_since > GRACE_SECONDS

    async def _show(self, guests: Sequence[Guest]) -> None:
        """Who has come and who is awaited."""
        words = roll(guests)
        self._speak(words)
        if len(guests) <= MOST_TOLD:
            await self.host.tell_all({"kind": "progress", "words": words})

    def _speak(self, words: str) -> None:
        if words != self._spoken:
            self._spoken = words
            self.say(words)

    async def _finish(self, judge: Judge) -> None:
        """Try the network where all is well so far, have it all judged, and tell the verdict: the ports are free before."""
        self.host.is_full = True
        guests = ordered(self.host.guests)
        is_well = assess(guests) in (State.COMPLETE, State.ENOUGH) and not contradicts(guests)
        links = await survey(self.host, guests) if is_well and len(guests) > 1 else ()
        silent = {at for at, guest in enumerate(guests) if is_well and is_silent(self.host, guest)}
        nodes = [guest.node for guest in guests]
        gone = still_gone(self.callers.gone.values(), guests)
        theirs = {guest.node.node_rank if guest.node.rank is None else guest.node.rank for guest in gone}
        size, is_late = expected(nodes), self.left <= 0 and not is_well
        self._verdict = judge(
            Gathered(
                guests=tuple(guests),
                links=tuple(link for link in links if not silent & {link.source, link.target}),
                expected=size,
                missing=tuple(n for n in missing(nodes) if n not in theirs) if is_late else (),
                lacking=max(size - len(nodes) - len(gone), 0) if is_late else 0,
                waited_seconds=self.patience if is_late else round(time.monotonic() - self._began, 1),
                hosted_by=next(i for i, guest in enumerate(guests) if guest.key == self.me.key),
                is_main=self.host.has("main"),
                strangers=tuple(self.host.strangers),
                silent=tuple(sorted(silent)),
                left=tuple(self.host.left.values()),
                gone=tuple(gone),
            )
        )
        verdict = await self._verdict
        if self.watches:
            self._watched = {guest.key: ranks_of(guest, self.places.get(guest.key, {})) for guest in guests}
            verdict = {**verdict, "watch": encode(self._watched[self.me.key])}
        self.host.close_ports("main", "door", "echo")
        await self.host.tell_all(verdict, self.places)
