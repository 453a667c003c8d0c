"""After the verdict: all stay connected until their ranks have met, so that a node that goes meanwhile is known at once.

A process that is killed closes its connections; one that was stopped says nothing more, although its machine answers; a
machine that is gone answers nothing at all. Whoever is only slow says now and then that it is alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.host import Host, Seat
from ddpdoctor.multinode.members import Guest
from ddpdoctor.multinode.messages import MAX_LINE_BYTES, SILENT_SECONDS, WireError, hear
from ddpdoctor.multinode.results import End, Lost
from ddpdoctor.network.aio import connect

__all__ = ["keep_watch", "lost_of", "ranks_of", "watch_host"]

KNOCK_SECONDS = 1.5
"""A SYN that was lost is sent again after one second."""
SUSPECT_SECONDS = 1.9
"""Who says nothing for so long may have been stopped, where it has not been slow before: it says something twice a second."""
SLOW_SECONDS = 1.0
"""Who was silent for longer than this before, and spoke again, is slow: it is given more time."""
SURE_SECONDS = 0.9
"""How much longer somebody whose machine answers must say nothing until it is taken for stopped: all may have stood still."""
SURE_OF_SLOW_SECONDS = 2.0
LOOK_SECONDS = 0.3
MOST_RANKS = 4096


def ranks_of(guest: Guest, place: Mapping[str, int]) -> Lost:
    """A node and its ranks, as the others will be told if it is lost; `place` is its part of the job."""
    node = guest.node
    first, count = (
        (node.rank, 1) if node.form == Form.ENV else (place.get("first_rank"), min(node.nproc or 0, MOST_RANKS))
    )
    return Lost(node.host, place.get("node_rank", node.node_rank), first, count)


def lost_of(told: object) -> Lost | None:
    """A node as another one tells of it; None where that cannot be read."""
    try:
        found = decode(Lost, told)
    except FactsError:
        return None
    return found if (found.first_rank or 0) >= 0 and 0 <= found.count <= MOST_RANKS else None


async def keep_watch(host: Host, known: Mapping[str, Lost], lost: Callable[[Lost], None]) -> None:
    """Tell `lost`, and every guest, which of the guests are gone; `known` are all by their keys. Ends when cancelled."""
    watched = {key: (seat, Doubt()) for key, seat in host.seats.items() if key in known}
    while True:
        for key, (seat, doubt) in list(watched.items()):
            end = (
                End.ENDED
                if host.seats.get(key) is not seat
                else await doubt.look(_peer(seat), seat.heard, seat.slowest)
            )
            if end is not None:
                del watched[key]
                found = replace(known[key], end=end)
                lost(found)
                await host.tell_all({"kind": "lost", "lost": encode(found)})
        await host.change()


async def watch_host(
    reader: asyncio.StreamReader, peer: tuple[str, int], host: Lost, lost: Callable[[Lost], None]
) -> None:
    """As a guest of the host at `peer`: tell `lost` whom it tells, and of itself when it is gone."""
    doubt, heard, slowest = Doubt(), time.monotonic(), 0.0
    while True:
        message: dict[str, Any] = {}
        try:
            message = await asyncio.wait_for(hear(reader), LOOK_SECONDS)
            end = None if message else End.ENDED
            now = time.monotonic()
            heard, slowest = now, max(slowest, now - heard)
        except asyncio.TimeoutError:
            end = await doubt.look(peer, heard, slowest)
        except (OSError, WireError):
            end = End.ENDED
        if end is not None:
            lost(replace(host, end=end))
            return
        found = lost_of(message.get("lost")) if message.get("kind") == "lost" else None
        if found is not None:
            lost(found)


@dataclass
class Doubt:
    """Whether somebody who says nothing was stopped, or its machine is gone, or neither."""

    _last: float | None = None
    """When it had last said something, as its silence was looked into."""
    _since: float = 0.0

    async def look(self, peer: tuple[str, int], heard: float, slowest: float) -> End | None:
        """What became of it, None where nothing did or it is too early to tell. It was last heard at `heard`, and never before
        said nothing for longer than `slowest` seconds. A port of its machine is knocked at, `peer`.
        """
        now, is_slow = time.monotonic(), slowest > SLOW_SECONDS
        silent, is_suspected = now - heard, self._last == heard
        sure = SURE_OF_SLOW_SECONDS if is_slow else SURE_SECONDS
        if silent < (SILENT_SECONDS if is_slow else SUSPECT_SECONDS) or (is_suspected and now - self._since < sure):
            return None
        connected = await connect(*peer, KNOCK_SECONDS, MAX_LINE_BYTES)
        if connected in (ConnectOutcome.NO_ANSWER, ConnectOutcome.NO_HOST):
            return End.SILENT if time.monotonic() - heard >= SILENT_SECONDS else None
        if not isinstance(connected, ConnectOutcome):
            connected[1].close()
        # With any other outcome than these it cannot be told from here: this machine may have lost its network.
        is_up = connected is ConnectOutcome.REFUSED or not isinstance(connected, ConnectOutcome)
        if is_up and is_suspected:
            return End.STOPPED
        self._last, self._since = heard, now
        return None


def _peer(seat: Seat) -> tuple[str, int]:
    """A port of a guest's machine at which a connection was made before."""
    return str((seat.writer.get_extra_info("peername") or ("",))[0]), seat.guest.echo_port
