"""ENV004: one rank, two processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.hand_started_ranks import hand_started_job, set_variable
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.node_findings import named, only_met
from ddpdoctor.rules.observation_findings import observed

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "ENV004",
    "duplicate-rank",
    Severity.ERROR,
    scope=CauseScope.PROCESS,
    explains=("NET001",),
    signatures=(r"rank \d+ of \d+ ranks has already checked in",),
)
def duplicate_rank(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two processes of the job have the same RANK.

    ## Why it matters
    Both wait, and so do all others, for the rank that nobody has: `wait timeout after …ms, keys: …/0//cpu//0/2` names the
    missing one, never the one that is there twice. With rank 0 twice, one of them reports EADDRINUSE.

    ## Fix
    Take RANK from the launcher alone, and start processes on one level only: the launcher or mp.spawn, not both.
    """
    if nodes is not None:
        yield from _met(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    yield from observed(probe.seen(Kind.DUPLICATE_RANK), expected="every rank once")


def _met(nodes: Nodes) -> Iterator[Finding]:
    groups: dict[int, list[Node]] = {}
    for node in nodes.nodes:
        if node.form == Form.ENV and node.rank is not None:
            groups.setdefault(node.rank, []).append(node)
    for rank, found in groups.items():
        if len(found) > 1:
            hosts = {node.host for node in found}
            yield Finding(
                f"{len(found)} processes have RANK={rank} ({', '.join(node.host for node in found[:8])}): expected every"
                f" rank once{_missing(nodes)}",
                (Evidence("nodes.rank", named(found), "every rank once"),),
                where=Where(host=hosts.pop() if len(hosts) == 1 else None, rank=rank),
                ranks=(rank,),
            )


def _missing(nodes: Nodes) -> str:
    """The rank that one of the two may have been meant to be."""
    there = {node.rank for node in nodes.nodes}
    absent = [rank for rank in range(nodes.expected or 0) if rank not in there]
    return f"; nobody has rank {absent[0]}" if len(absent) == 1 else ""


@duplicate_rank.look
def same_rank(launch: Launch) -> Iterator[Finding]:
    """Two lines of one job that start the same rank."""
    job = hand_started_job(launch)
    counts = Counter(each.rank for each in job)
    absent = sorted(set(range(max((each.size for each in job), default=0))) - set(counts))
    for rank, count in counts.items():
        if count < 2:
            continue
        same = [each for each in job if each.rank == rank]
        last = same[-1].variable("RANK")
        if last is not None:
            nodes = ", ".join(str(each.line.node) for each in same)
            text = f"{count} lines start RANK={rank} (nodes {nodes}): expected every rank once"
            edits = set_variable(last, str(absent[0])) if len(absent) == 1 and count == 2 else None
            yield point(launch, same[-1].line, last.word, text, "a rank of its own", edits)


@duplicate_rank.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided over what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.DUPLICATE_RANK)
