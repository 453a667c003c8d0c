"""The host has every node try the network to its partners, all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ddpdoctor.facts.nodes import NodeLink
from ddpdoctor.multinode.host import Host, Seat
from ddpdoctor.multinode.link_plan import orders, read_links, try_links
from ddpdoctor.multinode.link_tests import TEST_SECONDS
from ddpdoctor.multinode.members import Guest
from ddpdoctor.multinode.messages import encode_line

__all__ = ["is_silent", "survey"]


async def survey(host: Host, guests: Sequence[Guest]) -> tuple[NodeLink, ...]:
    """What the host and its guests see of the network between them; who goes meanwhile is not waited for."""
    wanted = orders(guests)
    seats = [host.seats[guest.key] for guest in guests if guest.key in host.seats]
    for seat in seats:
        seat.links = None
    await asyncio.gather(*(host.tell(seat, encode_line(wanted[seat.guest.key])) for seat in seats))
    links = await try_links(wanted[host.me.key], host.token)
    end = time.monotonic() + 2 * TEST_SECONDS
    while any(_is_awaited(host, seat) for seat in seats) and time.monotonic() < end:
        await host.change()
    index = {guest.key: at for at, guest in enumerate(guests)}
    for seat in seats:
        links += read_links(seat.links or {}, index[seat.guest.key], len(guests))
    return tuple(links)


def is_silent(host: Host, guest: Guest) -> bool:
    """Whether a guest did not say what it saw of the network and says nothing else either."""
    seat = host.seats.get(guest.key)
    return seat is not None and seat.links is None and seat.is_silent


def _is_awaited(host: Host, seat: Seat) -> bool:
    return seat.links is None and not seat.is_silent and host.seats.get(seat.guest.key) is seat
