"""LOG004 to LOG007: what the other ranks print after a rank, or the process that hosts the store, has ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import DebugAnswer, Hang
    from ddpdoctor.facts.log import Log, LogLine

__all__ = ["CLOSED"]

CLOSED = (
    r"Connection closed by remote peer",
    r"Connection closed by localRank \d+",
    r"Socket recv failed while polling",
    r"Could not receive type from localRank \d+",
    r"due to a network error or a remote process exiting prematurely",
    r"remote process exited or there was a network error",
    r"Error encountered progressing operation=",
    r"NCCL communicator was aborted\b",
    r"peer process has unexpectedly disconnected",
    r"NCCL communicator encountered error set by ProcessGroupNCCL",
    r"Call to (recv|send|read|write|recvmsg|sendmsg)( (from|to) \S+)? failed : "
    r"(Connection (reset by peer|refused)|Broken pipe)",
    r"[Cc]onnect to \S+ failed : Connection reset by peer",
    r"socket(?:PollConnect|ConnectCheck): [Cc]onnect to \S+ returned (111\(Connection refused\)|Connection refused)",
    r"Received a (dump|global) signal due to a collective timeout from +([^t\s]|t[^h])",
    r"Observed flight recorder dump signal from another rank",
    r"Horovod has been shut down",
)
"""What NCCL and torch print about a peer that has ended."""


OF_RAS = (
    r"considered dead \(unreachable via the RAS network\)",
    r"Missing communicator data from \d+ (?:job process|rank)",
    r"\b[Tt]he missing ranks?: \d",
    r"\bPEER_DEAD\b",
)
"""What NCCL RAS prints about processes that do not respond, as text and as an event."""


@cause(
    "LOG004",
    "rank-death-not-propagated",
    Severity.ERROR,
    stage=CausalStage.TERMINATED,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(r"forcefully exiting via Signals\.SIGKILL", *OF_RAS),
)
def rank_death_not_propagated(log: Log) -> Iterator[Finding]:
    """A rank or a node ended, but the other ranks keep running.

    ## Why it matters
    The job stays "running" in the queue for hours although one rank has ended; its error is in the log of another node. The
    launcher may print a single line, `Unable to shutdown process 4711 via Signals.SIGTERM, forcefully exiting via
    Signals.SIGKILL`: a worker was blocked in a CUDA call and did not react to SIGTERM.

    ## Fix
    Read the log of the node that printed least. Leave TORCH_NCCL_ASYNC_ERROR_HANDLING on, let one launcher manage all
    nodes, and under Slurm start with `srun --kill-on-bad-exit=1`.

    ## Example

        1 job process is considered dead (unreachable via the RAS network)
        Process 3487984 on node 172.16.64.213 managing GPU 5

        # before
        srun python train.py
        # after, on that node, and for the next run
        sudo dmesg -T | grep -iE "xid|killed process"
        srun --kill-on-bad-exit=1 python train.py
    """
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import signed

    of_ras = matching_lines(log, OF_RAS)
    yield from signed(rank_death_not_propagated, replace(log, lines=_without(log, of_ras)))
    if of_ras:
        yield _lost_for_ras(log, of_ras)


def _without(log: Log, lines: list[LogLine]) -> tuple[LogLine, ...]:
    return tuple(line for line in log.lines if line not in lines)


def _lost_for_ras(log: Log, lines: list[LogLine]) -> Finding:
    """The processes that are dead or did not respond, as NCCL RAS prints them."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.rules.log.headlines import names_of
    from ddpdoctor.rules.log.signatures import finding_of, retitled

    title = "a process does not respond to NCCL RAS: it is dead or stuck"
    found = finding_of(log, lines, title, blames_speaker=False)
    named = [match for _, match in context_lines(log, "lost_rank")]
    numbers = [int(number) for match in named for number in re.findall(r"\d+", match["ranks"] or match["rank"] or "")]
    ranks = tuple(sorted(set(numbers)))
    hosts = {match["host"] for _, match in context_lines(log, "lost_process")}
    is_event = all("PEER_DEAD" in line.text for line in lines) and not history_of(log).has_failed
    if ranks or hosts:
        found = retitled(replace(found, said_by=names_of(ranks, sorted(hosts))), title.removeprefix("a process "))
    return replace(
        found,
        ranks=ranks,
        role=None,
        severity=Severity.WARNING if is_event else None,
        where=replace(
            found.where,
            rank=ranks[0] if len(ranks) == 1 else None,
            host=next(iter(hosts)) if len(hosts) == 1 else None,
        ),
    )


@cause(
    "LOG005",
    "peer-connection-closed",
    Severity.ERROR,
    yields_to=("NET021",),
    speaker=Speaker.SURVIVOR,
    kind="consequence",
    signatures=CLOSED,
)
def peer_connection_closed() -> None:
    """NCCL connection closed by a rank that had exited.

    ## Why it matters
    `ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely`, `Connection closed
    by remote peer node1<57557>`, and even `Internal error - please report this issue to the NCCL developers` come from healthy
    ranks. Their peer exited first.

    ## Fix
    Find the rank that the line names, or the node with that address, and read its first error.

    ## Example

        NCCL WARN socketProgress: Connection closed by remote peer node1<57557>

        # before: only the log of rank 0 was kept
        torchrun … train.py > rank0.log
        # after: keep the log of every rank, and start with node1
        torchrun --log-dir logs --tee 3 … train.py
    """


@cause(
    "LOG006",
    "gloo-peer-closed",
    Severity.ERROR,
    speaker=Speaker.SURVIVOR,
    kind="consequence",
    signatures=(
        r"pair\.cc:\d+\] Connection closed by peer",
        r"pair\.cc:\d+\] Read error [^\n]{0,300}Connection reset by peer",
        r"Connection closed by peer \[[^\]]{0,100}\]:\d+",
        r"typically caused by a remote worker (crashing|hanging)",
        r"pair\.cc:\d+\] (writev|sendmsg) [^\n]{0,300}(Broken pipe|Connection reset by peer)",
    ),
)
def gloo_peer_closed() -> None:
    """Gloo connection closed by a rank that had exited.

    ## Why it matters
    All surviving ranks print `Connection closed by peer [10.0.0.2]:63194. This is typically caused by a remote worker crashing`
    within a second; the address belongs to the rank that exited first.

    ## Fix
    Find the rank that runs at that address and read its own output: its first error is the cause.

    ## Example

        [rank0]: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:63194

        # before: only the log of rank 0 was kept
        torchrun … train.py > rank0.log
        # after: keep the log of every rank, and start with the node at 10.0.0.2
        torchrun --log-dir logs --tee 3 … train.py

    ## Source
    gloo/transport/tcp/pair.cc.
    """


@cause(
    "LOG007",
    "store-connection-closed",
    Severity.ERROR,
    speaker=Speaker.STORE_CLIENT,
    kind="consequence",
    signatures=(
        r"dump.{0,3} flag on TCPStore",
        r"[Ff]ailed to recv, got 0 bytes",
        r"sendBytes failed on SocketImpl",
        r"recvVector failed on SocketImpl",
        r"recvValue(WithTimeout)? failed on SocketImpl",
        r"RendezvousConnectionError",
        r"maybe TCPStore server has shut ?down too early",
        r"Error: (Connection reset by peer|Broken pipe)$",
    ),
)
def store_connection_closed() -> None:
    """Store connection closed: the host process of the store had exited.

    ## Why it matters
    All ranks print thousands of lines such as `Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has
    shut down too early)` or `Failed to recv, got 0 bytes`. The host of the store, rank 0 or the launcher of its node, exited
    first, and these lines hide the reason.

    ## Fix
    Find the rank or launcher that ended first, and read what it printed before that.

    ## Example

        Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?

        # before: the log of one node
        ddpdoctor triage node1.log
        # after: the logs of all nodes, with the one that hosts the store
        ddpdoctor triage node0.log node1.log
    """


@rank_death_not_propagated.look
def process_gone(hang: Hang) -> Iterator[Finding]:
    """A rank without a process, or with one that has ended."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import (
        jobs_of,
        process_gone_finding,
        rank_finding,
        waiting_ranks_text,
        was_oom_killed,
    )

    for job in jobs_of(hang):
        for each in job.of(Activity.GONE):
            yield rank_finding(each, f"{each.process.title} {each.words}{waiting_ranks_text(job)}")
        if job.missing and not was_oom_killed(job):
            yield process_gone_finding(job, job.missing, "")


@rank_death_not_propagated.look
def dead_for_ras(hang: Hang) -> Iterator[Finding]:
    """Ranks that NCCL RAS considers dead, or that did not respond to it."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.facts.gaps import not_here
    from ddpdoctor.rules.hang.ras_findings import ras_finding

    if not hang.ras:
        not_here("NCCL's RAS was not queried")
    for each in hang.ras:
        gone = tuple(p for p in each.peers if p.trouble in ("dead", "incomplete"))
        if gone:
            yield ras_finding(each, gone, f"{ranges(p.rank for p in gone)}: no response to NCCL RAS, dead or stuck")


@rank_death_not_propagated.look
def silent_for_debug_server(hang: Hang) -> Iterator[Finding]:
    """Ranks that did not answer torch's debug server."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.facts.gaps import not_here

    if not hang.debug_answers and not any(each.host for each in hang.stacks):
        not_here("no answers to torch's debug server")
    silent: dict[int, DebugAnswer] = {}
    for each in hang.debug_answers:
        if each.trouble == "no answer":
            silent.setdefault(each.rank, each)
    if silent:
        (first, *others), ranks = [silent[rank] for rank in sorted(silent)], tuple(sorted(silent))
        place = Where(host=first.host or None, rank=None if others else first.rank, file=first.source, line=first.line)
        yield Finding(
            f"{ranges(ranks)}: no answer to torch's debug server, dead or stuck",
            tuple(Evidence(f"{each.source}:{each.line}", each.text, "an answer") for each in silent.values()),
            where=replace(place, host=None if others else place.host),
            ranks=ranks,
            certainty=Certainty.LIKELY,
            label="no answer",
        )


NOT_REACHED = (r"\bconnect\(\) timed out\.",)


LOST = ("RendezvousConnectionError",)


@store_connection_closed.look
def store_lost(log: Log) -> Iterator[Finding]:
    """Agents print the same about a store that they never reached, which NET003 reports."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.rendezvous_lines import failed_connections
    from ddpdoctor.rules.log.signatures import signed

    lost = matching_lines(log, LOST)
    for found in signed(store_connection_closed, log):
        only_agents = all(
            any(evidence.path == log.place(line.source, line.number) for line in lost) for evidence in found.evidence
        )
        if not (only_agents and (failed_connections(log) or matching_lines(log, NOT_REACHED))):
            yield found
