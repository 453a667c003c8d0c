"""Which node tries the network to which other one, and at which of its addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.net import is_loopback
from ddpdoctor.facts.nodes import Link, Node
from ddpdoctor.meeting.guests import Guest
from ddpdoctor.meeting.links import partners, try_link

__all__ = ["orders", "read_links", "try_links"]

MOST_LINKS = 4096
SAMPLED = (1, 2)
"""The distances at which a sample of the bandwidth is taken: a node shows what it can do as soon as one partner is healthy."""


def orders(guests: Sequence[Guest]) -> dict[str, dict[str, Any]]:
    """What to try, for each guest by its key. One of the ranks of a machine tries for all of them."""
    firsts: dict[str, int] = {}
    for index, guest in enumerate(guests):
        firsts.setdefault(guest.node.machine or guest.key, index)
    places = list(firsts.values())
    wanted: dict[int, list[dict[str, Any]]] = {}
    for place, index in enumerate(places):
        for other in partners(place, len(places)):
            distance = (other - place) % len(places)
            wanted.setdefault(index, []).extend(_links(guests, index, places[other], distance in SAMPLED))
    return {guest.key: {"kind": "test", "links": wanted.get(index, [])} for index, guest in enumerate(guests)}


def _links(guests: Sequence[Guest], source: int, target: int, samples: bool) -> list[dict[str, Any]]:
    guest = guests[target]
    found = []
    for at, address in enumerate(_dialled(guest.node) or ("",)):
        name = (guest.node.full_name or guest.node.host) if at == 0 else ""
        link = Link(source, target, name, (), address, guest.echo_port)
        found.append({"link": encode(link), "key": guest.key, "samples": samples and at == 0})
    return found


def _dialled(node: Node) -> tuple[str, ...]:
    """The addresses at which others would turn to a node: Gloo's, NCCL's first one, else its first of all."""
    nccl = [each.partition("/")[0] for each in node.nccl_addresses[:1]]
    chosen = [each for each in (node.gloo_address, *nccl) if each and not is_loopback(each)]
    return tuple(dict.fromkeys(chosen)) or node.addresses[:1]


async def try_links(order: dict[str, Any], token: str) -> list[Link]:
    """What was seen on the links of an order, all tried at once."""
    wanted = order.get("links")
    works = []
    for each in wanted[:MOST_LINKS] if isinstance(wanted, list) else ():
        try:
            link = decode(Link, each.get("link"))
        except (FactsError, AttributeError):
            continue
        works.append(try_link(link, token, str(each.get("key")), samples=each.get("samples") is True))
    return list(await asyncio.gather(*works))


def read_links(given: Sequence[Any], source: Sequence[int], count: int) -> list[Link]:
    """Links as a guest sent them; what is no link between nodes that are here is left out."""
    found = []
    for each in given[:MOST_LINKS]:
        try:
            link = decode(Link, each)
        except FactsError:
            continue
        if link.source in source and 0 <= link.target < count:
            found.append(link)
    return found
