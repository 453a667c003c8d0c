"""After the verdict: all stay connected until their ranks have met, so that a node that goes meanwhile is known at once.

A process that is killed closes its connections; one that was stopped says nothing more, although its machine answers; a
machine that is gone answers nothing at all. Whoever is only slow says now and then that it is alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.net import Outcome
from ddpdoctor.facts.nodes import Form
from ddpdoctor.meeting.guests import Guest
from ddpdoctor.meeting.host import Host, Seat
from ddpdoctor.meeting.results import End, Lost
from ddpdoctor.meeting.sockets import dial
from ddpdoctor.meeting.wire import MAX_LINE_BYTES, SILENT_SECONDS, WireError, hear

__all__ = ["keep_watch", "lost_of", "ranks_of", "watch_host"]

KNOCK_SECONDS = 1.5
"""A SYN that was lost is sent again after one second."""
SURE_SECONDS = 2.0
"""How much longer somebody whose machine answers must say nothing until it is taken for stopped: all may have stood still."""
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
    watched = {key: seat for key, seat in host.seats.items() if key in known}
    asked: dict[str, tuple[float, float]] = {}  # what it had last said, and since when that is looked into
    while True:
        for key, seat in list(watched.items()):
            end, now = End.ENDED if host.seats.get(key) is not seat else None, time.monotonic()
            last, since = asked.get(key, (None, now))
            is_suspected = last == seat.heard
            if end is None and seat.is_silent and (not is_suspected or now - since > SURE_SECONDS):
                end = await _end_of(_peer(seat), is_suspected)
                asked[key] = seat.heard, now
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
    is_suspected = False
    while True:
        try:
            message = await asyncio.wait_for(hear(reader), SURE_SECONDS if is_suspected else SILENT_SECONDS)
            end = None if message else End.ENDED
            is_suspected = False
        except asyncio.TimeoutError:
            message, end = {}, await _end_of(peer, is_suspected)
            is_suspected = True
        except (OSError, WireError):
            message, end = {}, End.ENDED
        if end is not None:
            lost(replace(host, end=end))
            return
        found = lost_of(message.get("lost")) if message.get("kind") == "lost" else None
        if found is not None:
            lost(found)


async def _end_of(peer: tuple[str, int], is_suspected: bool) -> End | None:
    """What became of somebody who says nothing, who may have done so before; None where that is too early to tell."""
    connected = await dial(*peer, KNOCK_SECONDS, MAX_LINE_BYTES)
    if connected in (Outcome.NO_ANSWER, Outcome.NO_HOST):
        return End.SILENT
    if not isinstance(connected, Outcome):
        connected[1].close()
    elif connected is not Outcome.REFUSED:
        return None  # it cannot be told from here: this machine may have lost its network
    return End.STOPPED if is_suspected else None


def _peer(seat: Seat) -> tuple[str, int]:
    """A port of a guest's machine at which a connection was made before."""
    return str((seat.writer.get_extra_info("peername") or ("",))[0]), seat.guest.echo_port
