"""HOST003, NET029, NET032, NET036: what RDMA's errors and their addresses say; else NET031 names them as candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding, Role, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.signatures import as_signed, finding_of, matching

__all__: list[str] = []

UNLOCKED = (
    r"ibv_reg_mr\w* failed[^\n]*Cannot allocate memory",
    r"NET/OFI Unable to register memory[^\n]*Cannot allocate memory",
    r"ibv_create_(qp|cq) failed[^\n]*Cannot allocate memory",
)
UNSAID = (r"NCCL WARN Call to ibv_create_(qp|cq) failed$",)
RETRIES = (r"with (error|status=)\s?12\b[^\n]*vendor err 129",)
NOT_FLUSHED = (
    r"Got completion (from peer \S+ )?with (error|status=)\s?([1-46-9]|1[01])\b",
    r"Got completion from peer \S+ with status=IBV_WC_(LOC|MW|REM|BAD|FATAL|RESP|GENERAL)_",
    r"async fatal event|local catastrophic error",
)
UNROUTED = (r"ibv_modify_qp failed with (error |\d+ )?Network is unreachable",)
NO_ADDRESS = (r"ibv_modify_qp failed with (error|\d+) (No such device|Invalid argument)",)
PAIRED = (r"ibv_modify_qp failed with 110 Connection timed out[^\n]*local GID [^\n]*remote GID",)
_GIDS = re.compile(r"(?P<side>local|remote) ?G[iI][dD]s?,? ?(?!index)(?P<gid>[0-9a-f:]+(?:\.\d+){0,3})")


@in_logs("HOST003")
def locked_memory(log: Log) -> Iterator[Finding]:
    """Memory that could not be locked, or, where NCCL leaves out the error, one of several reasons."""
    lines = matching(log, UNLOCKED)
    if lines:
        yield finding_of(log, lines, "The limit of locked memory is too low for RDMA", blames_speaker=True)
        return
    unsaid = matching(log, UNSAID)
    if unsaid:
        title = (
            "NCCL could not make a queue of an RDMA adapter, and does not say why. Candidates: the limit of locked memory "
            "(ulimit -l, HOST003), an adapter that has no queues left or refuses them (NET032, NET035)"
        )
        yield finding_of(log, unsaid, title, blames_speaker=True)


@in_logs("NET029")
def gid_not_routable(log: Log) -> Iterator[Finding]:
    """A peer does not answer: sure where RoCE uses a link-local address, otherwise one of several reasons."""
    unrouted = matching(log, UNROUTED)
    if unrouted:
        yield finding_of(
            log, unrouted, "No route leads from an RDMA port to the address of its peer", blames_speaker=True
        )
    lines = matching(log, RETRIES)
    if not lines:
        return
    local = [line for line in lines if "fe80:" in line.text]
    if local and any(context_lines(log, "roce")):
        yield finding_of(
            log, local, "RoCE uses a link-local address (GID), which no router passes on", blames_speaker=True
        )
        return
    title = "An RDMA peer does not answer; on RoCE a GID that does not lead to other networks is one reason"
    yield replace(finding_of(log, lines, title, blames_speaker=True), severity=Severity.WARNING)


@in_logs("NET032")
def work_request_failed(log: Log) -> Iterator[Finding]:
    """A work request that the adapter gave up; those that were only flushed follow from the peer that does not answer."""
    only_flushed = not matching(log, NOT_FLUSHED) and bool(matching(log, RETRIES))
    for found in as_signed("NET032", log):
        yield replace(found, role=Role.CONSEQUENCE, caused_by="NET031") if only_flushed else found


@in_logs("NET035")
def unusable(log: Log) -> Iterator[Finding]:
    """A port that NCCL took and cannot use, or one that it had to leave out, which other nodes may have taken."""
    lines = matching(log, NO_ADDRESS)
    if lines:
        yield finding_of(log, lines, "NCCL takes an RDMA port that has no address at all", blames_speaker=True)
    left_out = matching(log, (r"NET/IB : Unable to open device",))
    if left_out:
        title = "NCCL cannot open an RDMA device that it sees and leaves it out: where other nodes use theirs, the job hangs"
        yield replace(finding_of(log, left_out, title, blames_speaker=True), severity=Severity.WARNING)


@in_logs("NET023")
def large_packets_lost(log: Log) -> Iterator[Finding]:
    """Large messages that were not acknowledged, or a work request that the adapter refused, for which MTUs are one reason."""
    lines = matching(log, (r"writev \[[^\]]*\]:\d+: Connection timed out",))
    if lines:
        yield finding_of(log, lines, "Small packets pass between the nodes and large ones vanish", blames_speaker=True)
    refused = matching(log, (r"local access violation work queue error",))
    if refused:
        title = (
            "An RDMA adapter refused a work request. Undetermined: MTUs that differ between the ends (NET023), or memory that "
            "the card may not read (NET033); NCCL_NET_GDR_LEVEL=LOC for one run decides"
        )
        yield finding_of(log, refused, title, blames_speaker=True)


@in_logs("NET036")
def rail_crossing(log: Log) -> Iterator[Finding]:
    """Two cards were paired whose addresses lie in different subnets."""
    lines = [line for line in matching(log, PAIRED) if _are_of_two_subnets(line.text)]
    if lines:
        title = "NCCL paired network cards of different subnets, which did not reach each other"
        yield finding_of(log, lines, title, blames_speaker=True)


def _are_of_two_subnets(text: str) -> bool:
    """Whether both GIDs hold an IPv4 address, and the addresses differ before their last number."""
    networks = {m["gid"].rpartition(".")[0] for m in _GIDS.finditer(text) if m["gid"].startswith("::ffff:")}
    return len(networks) > 1
