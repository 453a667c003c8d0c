"""The ranks of a probe as nodes, so that the multi-node rules can judge them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ddpdoctor.facts.nodes import Form, Node, NodeLink, Nodes
from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.facts.reachability import ConnectOutcome

__all__ = ["nodes_of"]

MOST_HOSTS = 64
"""With up to this many hosts, the probe tests every pair."""

_OUTCOMES = {
    ConnectOutcome.REFUSED: ConnectOutcome.REFUSED,
    ConnectOutcome.RESET: ConnectOutcome.REFUSED,
    ConnectOutcome.PROHIBITED: ConnectOutcome.PROHIBITED,
}
"""The outcomes of the probe's blocked links in the multi-node rules; all others are NO_ANSWER."""


def nodes_of(probe: Probe) -> Nodes | None:
    """One node per host, or per rank if ranks of one host differ; None when there is nothing to compare."""
    failed = probe.seen(Kind.LINK_BLOCKED, Kind.LINK_BLACK_HOLE)
    if not failed and not any(report.traits for report in probe.ranks):
        return None
    sizes = Counter(report.host for report in probe.ranks)
    chosen = _representatives(probe)
    form = Form.STATIC if len(chosen) == len(sizes) else Form.ENV
    nodes = tuple(_node(probe, report, sizes[report.host], form) for report in chosen)
    return Nodes(nodes=nodes, links=tuple(_links(nodes, failed)), expected=len(nodes))


def _representatives(probe: Probe) -> list[RankReport]:
    """The first rank of each host, or all ranks if those of one host differ; in order of rank."""
    hosts: dict[str, list[RankReport]] = {}
    for report in sorted(probe.ranks, key=lambda report: report.rank):
        hosts.setdefault(report.host, []).append(report)
    if all(report.traits == reports[0].traits for reports in hosts.values() for report in reports):
        return [reports[0] for reports in hosts.values()]
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
    """Every pair of hosts in both directions; pairs without an observation work."""
    first = {node.host: index for index, node in reversed(list(enumerate(nodes)))}
    broken = {(first.get(link.peer or "", -1), first.get(link.host or "", -1)): link for link in failed}
    pairs = [(source, target) for source in first.values() for target in first.values() if source != target]
    if not broken or len(first) > MOST_HOSTS:
        pairs = list(broken)
    return [_link(source, target, broken.get((source, target))) for source, target in pairs if min(source, target) >= 0]


def _link(source: int, target: int, observation: Observation | None) -> NodeLink:
    if observation is None:
        return NodeLink(source, target, address="-", is_echoed=True)
    blocked = observation.kind is Kind.LINK_BLOCKED
    failure = _OUTCOMES.get(observation.outcome or ConnectOutcome.NO_ANSWER, ConnectOutcome.NO_ANSWER)
    address, _, port = (observation.value or "-:0").rpartition(":")
    return NodeLink(
        source,
        target,
        address=address,
        port=int(port),
        outcome=failure if blocked else None,
        is_echoed=None if blocked else False,
    )
