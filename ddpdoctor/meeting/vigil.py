"""After the verdict: all stay connected until their ranks have met, so that a node that goes meanwhile is known at once.

A process that is killed closes its connections; a machine that is gone says nothing more, and nothing at it answers. One
that is only slow, or stopped, does answer: of that the ranks themselves will tell.
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
from ddpdoctor.meeting.results import Lost
from ddpdoctor.meeting.sockets import dial
from ddpdoctor.meeting.wire import MAX_LINE_BYTES, SILENT_SECONDS, WireError, hear

__all__ = ["keep_watch", "lost_of", "ranks_of", "watch_host"]

KNOCK_SECONDS = 1.5
"""A SYN that was lost is sent again after one second."""
MOST_RANKS = 4096


def ranks_of(guest: Guest, place: Mapping[str, int]) -> Lost:
    """A node and its ranks, as the others will be told if it is lost; `place` is its part of the job."""
    node = guest.node
    first, count = (node.rank, 1) if node.form == Form.ENV else (place.get("first_rank"), node.nproc or 0)
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
    while True:
        for key, seat in list(watched.items()):
            is_here = host.seats.get(key) is seat
            if is_here and not (seat.is_silent and await _is_gone(seat)):
                continue
            del watched[key]
            found = replace(known[key], is_silent=is_here)
            lost(found)
            await host.tell_all({"kind": "lost", "lost": encode(found)})
        await host.change()


async def watch_host(
    reader: asyncio.StreamReader, peer: tuple[str, int], host: Lost, lost: Callable[[Lost], None]
) -> None:
    """As a guest of the host at `peer`: tell `lost` whom it tells, and of itself when it is gone."""
    while True:
        try:
            message = await asyncio.wait_for(hear(reader), SILENT_SECONDS)
        except asyncio.TimeoutError:
            if await _is_machine_gone(*peer):
                lost(replace(host, is_silent=True))
                return
            continue
        except (OSError, WireError):
            message = {}
        if not message:
            lost(host)
            return
        found = lost_of(message.get("lost")) if message.get("kind") == "lost" else None
        if found is not None:
            lost(found)


async def _is_machine_gone(address: str, port: int) -> bool:
    """Whether nothing at all answers there: a refusal shows that the machine is alive."""
    connected = await dial(address, port, KNOCK_SECONDS, MAX_LINE_BYTES)
    if isinstance(connected, Outcome):
        return connected in (Outcome.NO_ANSWER, Outcome.NO_HOST)
    connected[1].close()
    return False


async def _is_gone(seat: Seat) -> bool:
    """Whether the machine of a guest that says nothing answers nothing; else it is listened to for as long again."""
    peer = seat.writer.get_extra_info("peername")
    if peer is None or await _is_machine_gone(str(peer[0]), seat.guest.echo_port):
        return True
    seat.heard = time.monotonic()
    return False
