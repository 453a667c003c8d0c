"""Which node tests the network to which other node, and at which of its addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.net import is_loopback
from ddpdoctor.facts.nodes import Form, Node, NodeLink
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.link_tests import partners, try_link
from ddpdoctor.multinode.members import Member

__all__ = ["dialled", "encode_links", "orders", "read_links", "try_links"]

MOST_LINKS = 4096
SAMPLED = (1, 2)
"""The distances at which bandwidth is sampled: one healthy partner is enough to show what a node can do."""


def orders(members: Sequence[Member]) -> dict[str, dict[str, Any]]:
    """The tests of each member, by its key. One rank of each machine tests for all of its ranks."""
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
    links = []
    for at, address in enumerate(dialled(member.node) or ("",)):
        is_asked = at == 0 and member.node.form == Form.C10D
        name = (member.node.full_name or member.node.host) if is_asked else ""
        link = {"source": source, "target": target, "name": name, "address": address, "port": member.echo_port}
        links.append({"link": link, "key": member.key, "samples": samples and at == 0})
    return links


def dialled(node: Node) -> tuple[str, ...]:
    """The addresses that other nodes would connect to: Gloo's, NCCL's first one, else the node's first one."""
    nccl = [address.partition("/")[0] for address in node.nccl_addresses[:1]]
    chosen = [address for address in (node.gloo_address, *nccl) if address and not is_loopback(address)]
    return tuple(dict.fromkeys(chosen)) or node.addresses[:1]


async def try_links(order: dict[str, Any], token: str, authentication: Authentication) -> list[NodeLink]:
    """The results of the link tests of an order, all run in parallel."""
    wanted = order.get("links")
    works = []
    for each in wanted[:MOST_LINKS] if isinstance(wanted, list) else ():
        try:
            link = decode(NodeLink, each.get("link"))
        except (FactsError, AttributeError):
            continue
        key, samples = str(each.get("key")), each.get("samples") is True
        works.append(try_link(link, token, key, authentication, samples=samples))
    return list(await asyncio.gather(*works))


def encode_links(links: Sequence[NodeLink]) -> dict[str, Any]:
    """Links as they are sent: working ones in a short form, because there are many; the others complete."""
    short = [link for link in links if link.works and link.address and not link.name]
    fine = [[link.target, link.latency_seconds, link.gb_per_s] for link in short]
    return {"kind": "links", "fine": fine, "links": [encode(link) for link in links if link not in short]}


def read_links(message: dict[str, Any], source: int, count: int) -> list[NodeLink]:
    """The links that member number `source` of `count` reports, without those to nodes that have not joined."""
    links = []
    fine, others = message.get("fine"), message.get("links")
    for each in fine[:MOST_LINKS] if isinstance(fine, list) else ():
        if isinstance(each, list) and len(each) == 3 and type(each[0]) is int and 0 <= each[0] < count:
            latency, rate = (number if isinstance(number, float) else None for number in each[1:])
            links.append(NodeLink(source, each[0], address="-", is_echoed=True, latency_seconds=latency, gb_per_s=rate))
    for each in others[:MOST_LINKS] if isinstance(others, list) else ():
        try:
            link = decode(NodeLink, each)
        except FactsError:
            continue
        if link.source == source and 0 <= link.target < count:
            links.append(link)
    return links
