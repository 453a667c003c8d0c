"""PROBE001 to PROBE004, PROBE018: ranks that did not join, joined late, or could not finish a phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.probe import COLLECTIVE_PHASES, Kind, Observation, Probe, RankReport
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.node_findings import only_met
from ddpdoctor.rules.observation_findings import lazily, observed
from ddpdoctor.rules.probe import who_is_missing

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

LATE_SECONDS = 15.0


@cause("PROBE001", "node-never-joined", Severity.ERROR, stage=CausalStage.REACHABILITY)
def node_never_joined(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Ranks of the job did not join while the others waited.

    ## Why it matters
    The ranks that did start print `Timed out after 1801 seconds waiting for clients. 2/3 clients joined.` or
    nothing. The message only counts ranks and appears only on the healthy nodes.

    ## Fix
    Start the job's command on the nodes that did not join. If it was started there, it is still in the queue, ended before
    it connected, or has another address or port. Give slow nodes more time with --join-timeout.

    ## Example

        Timed out after 1801 seconds waiting for clients. 2/3 clients joined.

        # before: node 2 was not started
        torchrun --nnodes 3 --node-rank 0 --master-addr node0 train.py    # node 0
        torchrun --nnodes 3 --node-rank 1 --master-addr node0 train.py    # node 1

        # after: also on node 2
        torchrun --nnodes 3 --node-rank 2 --master-addr node0 train.py    # node 2
    """
    if nodes is not None:
        yield from who_is_missing.missing(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    missing = [observation for observation in probe.seen(Kind.NEVER_JOINED) if 0 not in observation.ranks]
    yield from observed(missing, expected=f"ranks 0 to {probe.world_size - 1}")


@cause("PROBE002", "head-node-never-joined", Severity.ERROR, stage=CausalStage.REACHABILITY)
def head_node_never_joined(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The process with rank 0 did not join.

    ## Why it matters
    Rank 0 hosts the store. Without it the connection of every other rank is refused and retried silently, until
    `The client socket has timed out after …ms while trying to connect to (HOST, PORT).`, which looks like a network
    fault.

    ## Fix
    Start the process with RANK=0 on the machine that MASTER_ADDR names; then check that its port is reachable.

    ## Example

        The client socket has timed out after 600000ms while trying to connect to (node0, 29500).

        # before: only node 1 was started
        torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py    # node 1

        # after: also on node 0
        torchrun --nnodes 2 --node-rank 0 --master-addr node0 train.py    # node 0
    """
    if nodes is not None:
        yield from who_is_missing.head_missing(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    missing = [observation for observation in probe.seen(Kind.NEVER_JOINED) if 0 in observation.ranks]
    yield from observed([*missing, *probe.seen(Kind.REFUSED)], expected="rank 0 at the master address")


@cause("PROBE003", "node-joined-late", Severity.WARNING, stage=CausalStage.REACHABILITY)
def node_joined_late(probe: Probe | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """A node joined much later than the others.

    ## Why it matters
    The others waited for it. With a shorter timeout they would have ended with `Timed out after … seconds waiting
    for clients`, and the late node would have waited alone.

    ## Fix
    Start the nodes together (image pulls, queues, and shared file systems are the usual reasons), or raise the timeout
    (`--rdzv-conf join_timeout=1200` with c10d).

    ## Example

        node 2 (node2) joined 20 s after the first

        # before: node 2 pulls its image first
        docker run IMAGE torchrun …
        # after, on every node before the job
        docker pull IMAGE
    """
    if nodes is not None:
        yield from who_is_missing.late(nodes)
    if only_met(nodes, probe):
        return
    assert probe is not None
    waits = [(r, r.waited_seconds) for r in probe.ranks if r.waited_seconds is not None]
    longest = max((seconds for _, seconds in waits), default=0.0)
    late = [r for r, seconds in waits if seconds < longest * 0.2]
    if longest < LATE_SECONDS or len(late) * 2 > len(waits):
        return
    ranks = tuple(sorted(r.rank for r in late))
    hosts = sorted({r.host for r in late})
    yield Finding(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} on {', '.join(hosts)} joined {longest:.0f} s"
        " after the first",
        (Evidence("probe.ranks.waited_seconds", f"{longest:.1f}", f"below {LATE_SECONDS:.0f}"),),
        where=Where(host=hosts[0] if len(hosts) == 1 else None, rank=ranks[0] if len(ranks) == 1 else None),
        ranks=ranks,
    )


@cause(
    "PROBE004",
    "rendezvous-incomplete",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(
        r"RendezvousTimeoutError",
        r"initializing process group in store based barrier on rank\W*$",
        r"worker_count=\d+, timeout",
        r"wait timeout after \d+ms, keys:",
        r"Error: (?:Socket|Wait) [Tt]imeout\W*$",
    ),
)
def rendezvous_incomplete(probe: Probe) -> Iterator[Finding]:
    """The ranks joined, but could not form the process group.

    ## Why it matters
    Every rank blocks in init_process_group and no rank is named: `wait timeout after …ms, keys: …`,
    `worker_count=4` of `world_size=8`, or `Gloo connectFullMesh failed`. Some ranks did not join, or the ranks
    cannot reach each other although all reached the store.

    ## Fix
    Look for another finding about one rank or one link; then check that the ports between the nodes are open and
    that every node's own host name resolves to an address that the others reach.

    ## Example

        wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2

        # before: node1's host name resolves to 127.0.1.1 on node1
        torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py
        # after, on node1
        GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py
    """
    stuck = [o for o in probe.seen(Kind.HANG, Kind.PEER_ERROR) if o.phase not in COLLECTIVE_PHASES]
    yield from _together(probe, stuck, "did not form the process group")


@cause("PROBE018", "probe-hang-after-init", Severity.ERROR, stage=CausalStage.HANG, kind="umbrella")
def probe_hang_after_init(probe: Probe) -> Iterator[Finding]:
    """The process group forms, but a collective does not finish.

    ## Why it matters
    Small control messages arrive and data does not. The job prints nothing until `Timed out waiting …ms for recv
    operation to complete`, on every rank alike.

    ## Fix
    Run `ddpdoctor probe --nproc-per-node=1` on two nodes at a time; check ports, MTU, peer access, and the
    interface that NCCL or Gloo chose.

    ## Example

        Timed out waiting 1800000ms for recv operation to complete

        # before: NCCL uses docker0
        torchrun --nnodes 2 … train.py
        # after, on every node
        NCCL_SOCKET_IFNAME=eth0 torchrun --nnodes 2 … train.py
    """
    stuck = [o for o in probe.seen(Kind.HANG, Kind.PEER_ERROR) if o.phase in COLLECTIVE_PHASES]
    yield from _together(probe, stuck, "did not finish a collective")


def _together(probe: Probe, stuck: list[Observation], problem: str) -> Iterator[Finding]:
    """One finding for all ranks that wait: none of them is the culprit, unless nothing better was observed."""
    if not stuck or not stuck[0].is_cause:
        return
    ranks = sorted({rank for o in stuck for rank in o.ranks})
    phases = ", ".join(sorted({o.phase for o in stuck}))
    other = _in_another_phase(probe) if all(o.kind is Kind.HANG for o in stuck) else ()
    apart = "".join(f"; rank {report.rank} on {report.host} is in {report.phase}" for report in other[:3])
    error = next((f": {o.message}" for o in stuck if o.kind is not Kind.HANG), "")
    one = other[0] if len(other) == 1 else None
    yield Finding(
        f"{len(ranks)} of {probe.world_size} ranks {problem} (phase {phases}){error}{apart}{lazily(probe)}",
        (Evidence("probe.observations.hang", phases, "all ranks through every phase"),),
        where=Where(one.host, one.node_rank, one.rank, one.local_rank) if one else Where(),
        ranks=tuple(report.rank for report in other),
    )


def _in_another_phase(probe: Probe) -> list[RankReport]:
    """The few ranks that wait in another phase than the majority, which waits in one phase: they skipped a step, or
    took one more.
    """
    phases = Counter(report.phase for report in probe.ranks)
    common, count = phases.most_common(1)[0] if phases else ("", 0)
    if len(phases) != 2 or len(probe.ranks) < probe.world_size or count * 2 <= probe.world_size:
        return []
    return [report for report in probe.ranks if report.phase != common]


@node_never_joined.look
def node_never_joined_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.NODE_NEVER_JOINED)


@head_node_never_joined.look
def head_node_never_joined_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.HEAD_NODE_NEVER_JOINED)


@rendezvous_incomplete.look
def rendezvous_incomplete_in_log(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.RENDEZVOUS_INCOMPLETE)
