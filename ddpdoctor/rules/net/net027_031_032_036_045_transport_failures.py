"""NET027, NET031, NET032, NET036, NET045: connections between ranks, as NCCL and Gloo report them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Finding, Role, Severity, Speaker
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "NET027",
    "foreign-connection-on-nccl-port",
    Severity.WARNING,
    signatures=(r"socketFinalizeAccept: wrong (type|magic)",),
)
def foreign_connection_on_nccl_port() -> None:
    """Something that is not a rank of this job connected to a port of NCCL.

    ## Why it matters
    "socketFinalizeAccept: wrong magic": a port scanner, a health check, a rank of another job, or a rank with another NCCL
    version. The bootstrap may hang or end with a closed connection.

    ## Fix
    Leave the nodes out of scans, bind NCCL to a private network with NCCL_SOCKET_IFNAME, and compare the NCCL versions of
    all nodes ("wrong type" is what an older NCCL sends).
    """


@cause(
    "NET031",
    "ib-transport-retry-exceeded",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    speaker=Speaker.LINK_END,
    kind="umbrella",
    candidates=("NET029", "NET036", "NET040", "PROBE006"),
    signatures=(
        r"with (error|status=)\s?1[23]\b",
        r"ibv_modify_qp failed with (error |\d+ )?(Connection timed out|No route to host)",
        r"odify(?:ing)? QP[^\n]{0,60}: (Connection timed out|No route to host|Network is unreachable)",
        r"status=IBV_WC_(RNR_)?RETRY_EXC_ERR",
    ),
)
def ib_transport_retry_exceeded() -> None:
    """An RDMA peer stopped answering.

    ## Why it matters
    "NET/IB : Got completion from peer 10.0.0.2<38560> with status=12 … vendor err 129" is printed by the side that waited;
    the job then hangs until the watchdog ends it. At the first collective it means a wrong GID, rail or subnet; after hours
    of training the peer died, or a link or switch is flapping. Undetermined from this line alone: a GID that does not lead
    to the other network (NET029), cards of different rails (NET036), a link that flaps (NET040), a peer that died (PROBE006).
    Programs without NCCL say "Failed to modify QP to RTR: Connection timed out".

    ## Fix
    Look at the peer that the line names first: did its process end? Then its link (ibstat, dmesg | grep mlx5), the GID index
    (show_gids, NCCL_IB_GID_INDEX), and the switch port.
    """


@cause(
    "NET032",
    "ib-completion-error",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    yields_to=("NET033",),
    speaker=Speaker.LINK_END,
    kind="umbrella",
    signatures=(
        r"Got completion (from peer \S+ )?with (error|status=)\s?([1-9]|1[01])\b",
        r"Got completion from peer \S+ with status=IBV_WC_(LOC|WR|MW|REM|BAD|FATAL|RESP|GENERAL)_",
        r"Got async event : local catastrophic error",
        r"NET/IB : \S+ async fatal event",
    ),
)
def ib_completion_error() -> None:
    """An RDMA work request failed with a completion error.

    ## Why it matters
    The number says which: 5 (flushed) only follows an earlier error on the same connection; 4 is a protection error of
    local memory, 9, 10 and 11 are requests that the other side refused.

    ## Fix
    Look for the first completion error or asynchronous event among all ranks; the ones with status 5 come after it.
    """


@cause(
    "NET036",
    "rail-crossing",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(r"ibv_modify_qp failed with 110 Connection timed out[^\n]*local GID [^\n]*remote GID",),
)
def rail_crossing() -> None:
    """NCCL pairs network cards of different rails, which cannot reach each other.

    ## Why it matters
    Small jobs run; from a number of nodes on it ends with "ibv_modify_qp failed with 110 Connection timed out, on dev
    mlx5_1:1 … local GID …, remote GID …", where the two GIDs lie in different subnets.

    ## Fix
    NCCL_CROSS_NIC=0 and the same order of cards on all nodes (NCCL_IB_HCA), or a route between the rails.
    """


@cause(
    "NET045",
    "gloo-mesh-failed",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    speaker=Speaker.LINK_END,
    kind="umbrella",
    signatures=(
        r"Gloo connectFullMesh",
        r"failed to connect, willRetry=\d+, retry=\d+",
        r"gloo/transport/tcp/pair\.cc:\d+\] connect \[[^\]]*\]:\d+: Connection (timed out|refused)",
        r"gloo/transport/tcp/socket\.cc:\d+\] rv != -1\. -1 vs -1\. connect: ",
    ),
)
def gloo_mesh_failed() -> None:
    """The ranks could not connect to each other over Gloo.

    ## Why it matters
    "Gloo connectFullMesh failed with … Connect timeout [none]" comes after about five times the timeout and names neither
    peer nor rank; with more than two nodes the first rank to fail may be innocent.

    ## Fix
    Look which address each rank publishes (getent hosts $(hostname): a loopback address or a docker bridge is wrong; set
    GLOO_SOCKET_IFNAME), then whether all TCP ports are open between the nodes, then whether all agree on WORLD_SIZE.
    `ddpdoctor check -- LAUNCH` on every node tries all three.
    """


NOT_FLUSHED = (
    r"Got completion (from peer \S+ )?with (error|status=)\s?([1-46-9]|1[01])\b",
    r"Got completion from peer \S+ with status=IBV_WC_(LOC|MW|REM|BAD|FATAL|RESP|GENERAL)_",
    r"async fatal event|local catastrophic error",
)


PAIRED = (r"ibv_modify_qp failed with 110 Connection timed out[^\n]*local GID [^\n]*remote GID",)


_GIDS = re.compile(r"(?P<side>local|remote) ?G[iI][dD]s?,? ?(?!index)(?P<gid>[0-9a-f:]+(?:\.\d+){0,3})")


@ib_completion_error.look
def work_request_failed(log: Log) -> Iterator[Finding]:
    """A work request that the adapter gave up; those that were only flushed follow from the peer that does not answer."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.rdma import RETRIES
    from ddpdoctor.rules.log.signatures import signed

    only_flushed = not matching_lines(log, NOT_FLUSHED) and bool(matching_lines(log, RETRIES))
    for found in signed(ib_completion_error, log):
        yield (
            replace(found, role=Role.CONSEQUENCE, caused_by=ib_transport_retry_exceeded.code) if only_flushed else found
        )


@rail_crossing.look
def rail_crossing_in_log(log: Log) -> Iterator[Finding]:
    """Two cards were paired whose addresses lie in different subnets."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, PAIRED) if _are_of_two_subnets(line.text)]
    if lines:
        title = "NCCL paired network cards of different subnets, which did not reach each other"
        yield finding_of(log, lines, title, blames_speaker=True)


def _are_of_two_subnets(text: str) -> bool:
    """Whether both GIDs hold an IPv4 address, and the addresses differ before their last number."""
    networks = {m["gid"].rpartition(".")[0] for m in _GIDS.finditer(text) if m["gid"].startswith("::ffff:")}
    return len(networks) > 1
