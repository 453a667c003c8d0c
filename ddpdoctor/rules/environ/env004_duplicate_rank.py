"""ENV004: two processes have the same rank."""

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
    repairs=("rank-variable", "escape", "wrap"),
)
def duplicate_rank(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two processes of the job have the same RANK.

    ## Why it matters
    All processes wait for the rank that no process has: `wait timeout after …ms, keys: …/0//cpu//0/2` names the
    missing rank, not the duplicate. With two processes of rank 0, one of them fails with `EADDRINUSE`.

    ## Fix
    Take RANK only from the launcher, and start processes in one place only: the launcher or mp.spawn, not both.

    ## Example

        2 processes have RANK=1 (node1, node2); no process has rank 2

        # before
        RANK=1 WORLD_SIZE=3 python train.py    # node1
        RANK=1 WORLD_SIZE=3 python train.py    # node2

        # after
        RANK=1 WORLD_SIZE=3 python train.py    # node1
        RANK=2 WORLD_SIZE=3 python train.py    # node2
    """
    if nodes is not None:
        yield from _joined(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    yield from observed(probe.seen(Kind.DUPLICATE_RANK), expected="every rank once")


def _joined(nodes: Nodes) -> Iterator[Finding]:
    groups: dict[int, list[Node]] = {}
    for node in nodes.nodes:
        if node.form == Form.ENV and node.rank is not None:
            groups.setdefault(node.rank, []).append(node)
    for rank, duplicates in groups.items():
        if len(duplicates) > 1:
            hosts = {node.host for node in duplicates}
            shown = ", ".join(node.host for node in duplicates[:8])
            yield Finding(
                f"{len(duplicates)} processes have RANK={rank} ({shown}){_missing(nodes)}",
                (Evidence("nodes.rank", named(duplicates), "every rank once"),),
                where=Where(host=hosts.pop() if len(hosts) == 1 else None, rank=rank),
                ranks=(rank,),
            )


def _missing(nodes: Nodes) -> str:
    """The one rank that is missing, which one of the duplicates probably should have had."""
    present = {node.rank for node in nodes.nodes}
    absent = [rank for rank in range(nodes.expected or 0) if rank not in present]
    return f"; no process has rank {absent[0]}" if len(absent) == 1 else ""


@duplicate_rank.look
def same_rank(launch: Launch) -> Iterator[Finding]:
    """Launch lines of one job that start the same rank."""
    job = hand_started_job(launch)
    counts = Counter(process.rank for process in job)
    absent = sorted(set(range(max((process.size for process in job), default=0))) - set(counts))
    for rank, count in counts.items():
        if count < 2:
            continue
        same = [process for process in job if process.rank == rank]
        last = same[-1].variable("RANK")
        if last is not None:
            nodes = ", ".join(str(process.line.node) for process in same)
            text = f"{count} lines start RANK={rank} (nodes {nodes})"
            edits = set_variable(last, str(absent[0])) if len(absent) == 1 and count == 2 else None
            label = f"RANK={rank} is already taken"
            yield point(launch, same[-1].line, last.word, text, "a rank of its own", edits, label=label)


@duplicate_rank.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.DUPLICATE_RANK)
