"""Which node tries the network to which other one, and at which of its addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.net import is_loopback
from ddpdoctor.facts.nodes import Form, Node, NodeLink
from ddpdoctor.multinode.link_tests import partners, try_link
from ddpdoctor.multinode.members import Member

__all__ = ["encode_links", "orders", "read_links", "try_links"]

MOST_LINKS = 4096
SAMPLED = (1, 2)
"""The distances at which a sample of the bandwidth is taken: a node shows what it can do as soon as one partner is healthy."""


def orders(members: Sequence[Member]) -> dict[str, dict[str, Any]]:
    """What to try, for each member by its key. One of the ranks of a machine tries for all of them."""
    firsts: dict[str, int] = {}
    for index, member in enumerate(members):
        firsts.setdefault(member.node.machine or member.key, index)
    places = list(firsts.values())
    wanted: dict[int, list[dict[str, Any]]] = {}
    for place, index in enumerate(places):
        for other in partners(place, len(places)):
            distance = (other - place) % len(places)
            wanted.setdefault(index, []).extend(_links(members, index, places[other], distance in SAMPLED))
    return {member.key: {"kind": "test", "links": wanted.get(index, [])} for index, member in enumerate(members)}


def _links(members: Sequence[Member], source: int, target: int, samples: bool) -> list[dict[str, Any]]:
    member = members[target]
    found = []
    for at, address in enumerate(_dialled(member.node) or ("",)):
        is_asked = at == 0 and member.node.form == Form.C10D
        name = (member.node.full_name or member.node.host) if is_asked else ""
        link = {"source": source, "target": target, "name": name, "address": address, "port": member.echo_port}
        found.append({"link": link, "key": member.key, "samples": samples and at == 0})
    return found


def _dialled(node: Node) -> tuple[str, ...]:
    """The addresses at which others would turn to a node: Gloo's, NCCL's first one, else its first of all."""
    nccl = [each.partition("/")[0] for each in node.nccl_addresses[:1]]
    chosen = [each for each in (node.gloo_address, *nccl) if each and not is_loopback(each)]
    return tuple(dict.fromkeys(chosen)) or node.addresses[:1]


async def try_links(order: dict[str, Any], token: str) -> list[NodeLink]:
    """What was seen on the links of an order, all tried at once."""
    wanted = order.get("links")
    works = []
    for each in wanted[:MOST_LINKS] if isinstance(wanted, list) else ():
        try:
            link = decode(NodeLink, each.get("link"))
        except (FactsError, AttributeError):
            continue
        works.append(try_link(link, token, str(each.get("key")), samples=each.get("samples") is True))
    return list(await asyncio.gather(*works))


def encode_links(links: Sequence[NodeLink]) -> dict[str, Any]:
    """Links as they are sent: those that work in short, for there are many; the others whole."""
    short = [link for link in links if link.works and link.address and not link.name]
    fine = [[link.target, link.latency_seconds, link.gb_per_s] for link in short]
    return {"kind": "links", "fine": fine, "links": [encode(link) for link in links if link not in short]}


def read_links(message: dict[str, Any], source: int, count: int) -> list[NodeLink]:
    """The links that member number `source` of `count` tells; what is no link to a node that is here is left out."""
    found = []
    fine, others = message.get("fine"), message.get("links")
    for each in fine[:MOST_LINKS] if isinstance(fine, list) else ():
        if isinstance(each, list) and len(each) == 3 and type(each[0]) is int and 0 <= each[0] < count:
            latency, rate = (number if isinstance(number, float) else None for number in each[1:])
            found.append(NodeLink(source, each[0], address="-", is_echoed=True, latency_seconds=latency, gb_per_s=rate))
    for each in others[:MOST_LINKS] if isinstance(others, list) else ():
        try:
            link = decode(NodeLink, each)
        except FactsError:
            continue
        if link.source == source and 0 <= link.target < count:
            found.append(link)
    return found
