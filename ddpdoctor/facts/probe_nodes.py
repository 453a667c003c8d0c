"""The ranks of a probe as nodes side by side: what the rules of several nodes judge, seen by the probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ddpdoctor.facts.nodes import Form, Node, NodeLink, Nodes
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.facts.reachability import ConnectOutcome

__all__ = ["nodes_of"]

MOST_HOSTS = 64
"""Up to so many hosts the probe tries every pair."""

_OUTCOMES = {
    ConnectOutcome.REFUSED: ConnectOutcome.REFUSED,
    ConnectOutcome.RESET: ConnectOutcome.REFUSED,
    ConnectOutcome.PROHIBITED: ConnectOutcome.PROHIBITED,
}
"""What a blocked link of a probe is to the rules of several nodes; anything else is NO_ANSWER."""


def nodes_of(probe: Probe) -> Nodes | None:
    """One node for each host, or for each rank where ranks of one host differ; None when nothing is to be compared."""
    failed = probe.seen(Kind.LINK_BLOCKED, Kind.LINK_BLACK_HOLE)
    if not failed and not any(each.traits for each in probe.ranks):
        return None
    sizes = Counter(each.host for each in probe.ranks)
    chosen = _representatives(probe)
    form = Form.STATIC if len(chosen) == len(sizes) else Form.ENV
    nodes = tuple(_node(probe, each, sizes[each.host], form) for each in chosen)
    return Nodes(nodes=nodes, links=tuple(_links(nodes, failed)), expected=len(nodes))


def _representatives(probe: Probe) -> list[RankReport]:
    """The first rank of each host, all ranks where those of one host differ; in order of rank."""
    hosts: dict[str, list[RankReport]] = {}
    for each in sorted(probe.ranks, key=lambda report: report.rank):
        hosts.setdefault(each.host, []).append(each)
    if all(each.traits == found[0].traits for found in hosts.values() for each in found):
        return [found[0] for found in hosts.values()]
    return sorted(probe.ranks, key=lambda report: report.rank)


def _node(probe: Probe, report: RankReport, nproc: int, form: str) -> Node:
    traits = {name: value for name, value in {**probe.traits, **report.traits}.items() if value}
    return Node(
        host=report.host,
        form=form if report.node_rank is not None else Form.ENV,
        node_rank=report.node_rank,
        rank=report.rank,
        local_rank=report.local_rank,
        world_size=report.world_size,
        nproc=nproc,
        launcher=probe.launcher,
        traits=traits,
    )


def _links(nodes: tuple[Node, ...], failed: Iterable[Observation]) -> list[NodeLink]:
    """Every pair of hosts in both directions; those that no observation is about work."""
    first = {node.host: index for index, node in reversed(list(enumerate(nodes)))}
    wrong = {(first.get(each.peer or "", -1), first.get(each.host or "", -1)): each for each in failed}
    pairs = [(source, target) for source in first.values() for target in first.values() if source != target]
    if not wrong or len(first) > MOST_HOSTS:
        pairs = list(wrong)
    return [_link(source, target, wrong.get((source, target))) for source, target in pairs if min(source, target) >= 0]


def _link(source: int, target: int, seen: Observation | None) -> NodeLink:
    if seen is None:
        return NodeLink(source, target, address="-", is_echoed=True)
    blocked = seen.kind is Kind.LINK_BLOCKED
    outcome = _OUTCOMES.get(seen.outcome or ConnectOutcome.NO_ANSWER, ConnectOutcome.NO_ANSWER) if blocked else None
    address, _, port = (seen.value or "-:0").rpartition(":")
    return NodeLink(
        source, target, address=address, port=int(port), outcome=outcome, is_echoed=None if blocked else False
    )
