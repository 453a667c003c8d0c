"""A verdict on all nodes in the form that the host node sends: lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddpdoctor.app.verdicts import (
    JobVerdict,
    Share,
    finding_of,
    of_separate_machines,
    refuted,
)
from ddpdoctor.engine import Outcome
from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.nodes import Form, Node, NodeLink, Nodes
from ddpdoctor.findings import Skipped

if TYPE_CHECKING:
    from ddpdoctor.multinode.members import Member

__all__ = ["places", "read_verdict", "written"]

MOST_SENT = 16


def places(members: Sequence[Member], found: Mapping[str, Share]) -> dict[str, dict[str, Any]]:
    """What is sent to each member besides the verdict: its share of the probe, and whether it reports for its machine."""
    firsts: dict[str, str] = {}
    for member in members:
        firsts.setdefault(member.node.machine or member.key, member.key)
    tellers = set(firsts.values())
    return {
        member.key: {
            "is_first": member.key in tellers or member.node.form != Form.ENV,
            **(asdict(found[member.key]) if member.key in found else {}),
        }
        for member in members
    }


def written(outcome: Outcome, nodes: Nodes) -> dict[str, Any]:
    """A verdict as it is sent; of many nodes the first ones are named."""
    return {
        "nodes": encode(
            Nodes(
                nodes=tuple(
                    Node(
                        n.host,
                        n.form,
                        node_rank=n.node_rank,
                        rank=n.rank,
                        nproc=n.nproc,
                        master_addr=n.master_addr,
                        master_port=n.master_port,
                    )
                    for n in nodes.nodes[:MOST_SENT]
                ),
                links=_extremes(nodes),
                expected=nodes.joined_count + nodes.absent_count,
                joined=nodes.joined_count,
                absent=nodes.absent,
                absent_count=nodes.absent_count,
                proves=nodes.proves,
            )
        ),
        "findings": [encode(finding) for finding in outcome.findings],
        "refuted": sorted(refuted(nodes)),
        "passed": outcome.passed,
        "skipped": [[each.code, each.reason, each.unanswered] for each in outcome.skipped],
        "crashed": [[each.code, each.error] for each in outcome.crashed],
    }


def _extremes(nodes: Nodes) -> tuple[NodeLink, ...]:
    """The link with the highest latency and the one with the lowest bandwidth: all that a summary shows."""
    timed = [link for link in nodes.links if link.latency_seconds is not None]
    measured = [link for link in nodes.links if link.gb_per_s is not None]
    found = []
    if timed:
        found.append(max(timed, key=lambda link: link.latency_seconds or 0.0))
    if measured:
        found.append(min(measured, key=lambda link: link.gb_per_s or 0.0))
    return tuple(found)


def read_verdict(message: Mapping[str, Any]) -> JobVerdict:
    """A verdict as received. What cannot be read is left out: the host may run another version, or not be ddpdoctor."""
    findings, passed, skipped, moot = (message.get(key) for key in ("findings", "passed", "skipped", "refuted"))
    outcome = Outcome()
    if isinstance(findings, list):
        outcome.findings = [found for finding in findings if (found := finding_of(finding)) is not None]
    if isinstance(passed, list):
        outcome.passed = [code for code in passed if isinstance(code, str)]
    for each in skipped if isinstance(skipped, list) else ():
        if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str) and isinstance(each[1], str):
            outcome.skipped.append(Skipped(each[0], each[1], each[2] is True))
    try:
        nodes = decode(Nodes, message.get("nodes"))
    except FactsError:
        nodes = None
    place = message.get("place")
    is_first = not isinstance(place, dict) or place.get("is_first") is not False
    known = frozenset(code for code in of_separate_machines() if isinstance(moot, list) and code in moot)
    return JobVerdict(outcome, _share(place), nodes, refuted=known, is_first=is_first)


def _share(place: object) -> Share | None:
    if not isinstance(place, dict):
        return None
    numbers = [place.get(name) for name in ("first_rank", "node_rank", "nnodes", "world_size")]
    if not all(type(number) is int and 0 <= number < 1 << 24 for number in numbers):
        return None
    return Share(*numbers)  # type: ignore[arg-type]
