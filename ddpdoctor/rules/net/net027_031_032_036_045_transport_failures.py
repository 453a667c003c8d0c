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
    signatures=(
        r"socketFinalizeAccept: wrong (type|magic)",
        r"socketFinalizeAccept from \S+: wrong (type|magic)",
        r"(Socket magic mismatch|Wrong socket type) from \S+ \(",
    ),
)
def foreign_connection_on_nccl_port() -> None:
    """Something that is not a rank of this job connected to an NCCL port.

    ## Why it matters
    NCCL prints `socketFinalizeAccept: wrong magic`, and the bootstrap may hang or end with a closed connection. It was a port
    scanner, a health check, a rank of another job, or a rank with another NCCL version.

    ## Fix
    Exclude the nodes from port scans, bind NCCL to a private network with NCCL_SOCKET_IFNAME, and compare the NCCL versions
    of all nodes (`wrong type` is what an older NCCL sends).

    ## Example
    In the log:

        NCCL WARN socketFinalizeAccept: wrong magic 474554202f204854 != 8f2c1d9a77aa01

    On every node, with eth1 on the private network:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_SOCKET_IFNAME=eth1
        torchrun --nnodes 2 train.py
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
    """An RDMA peer stopped responding.

    ## Why it matters
    The side that waited prints `NET/IB : Got completion from peer 10.0.0.2<38560> with status=12 … vendor err 129`, and the job
    hangs until the watchdog ends it. At the first collective the reason is a wrong GID, rail or subnet (NET029, NET036); after
    hours of training the peer died (PROBE006), or a link or switch is flapping (NET040).

    ## Fix
    Look first at the node that the line names: did its process end? Then check its link (`ibstat`, `dmesg | grep mlx5`), its
    GID index (`show_gids`, NCCL_IB_GID_INDEX), and the switch port.

    ## Example
    In the log of rank 0 (programs without NCCL print `Failed to modify QP to RTR: Connection timed out`):

        NCCL WARN NET/IB : Got completion from peer 10.0.0.2<38560> with status=12 opcode=0 len=0 vendor err 129

    On the node 10.0.0.2:

        ps -ef | grep train.py
        ibstat
        dmesg | grep mlx5

    ## Source
    Confirmed in https://github.com/NVIDIA/nccl/issues/426 (`NCCL_IB_GID_INDEX=3` on RoCE, after `show_gids`) and
    https://github.com/NVIDIA/nccl/issues/2013 (`NCCL_CROSS_NIC=0` where only NICs of one rail reach each other).
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
        r"communicator encountered a fatal error \(detected in",
        r"NET/IB: Device \d+ marked as failed",
        r"NET/IB: (Got CQE with error|The error is fatal|Fatal error\. Detected \d+ failed devices)",
    ),
)
def ib_completion_error() -> None:
    """An RDMA work request failed with a completion error.

    ## Why it matters
    The number of the status gives the reason: 5 (flushed) only follows an earlier error on the same connection; 4 is a
    protection error of local memory; 9, 10 and 11 are requests that the other side refused.

    ## Fix
    Find the first completion error or asynchronous event among all ranks; those with status 5 come after it.

    ## Example
    In the logs of two ranks:

        NET/IB : Got completion from peer 10.0.0.2<38560> with status=11 opcode=1 len=0 vendor err 136
        NET/IB : Got completion from peer 10.0.0.1<41210> with status=5 opcode=0 len=0 vendor err 244

    The first one, status 11, is the cause:

        grep -h "Got completion" logs/* | grep -v "status=5"
    """


@cause(
    "NET036",
    "rail-crossing",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(r"ibv_modify_qp failed with 110 Connection timed out[^\n]{0,120}local GID [^\n]{0,120}remote GID",),
)
def rail_crossing() -> None:
    """NCCL pairs NICs of different rails, which cannot reach each other.

    ## Why it matters
    Small jobs work, but larger ones fail with `ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1 … local
    GID …, remote GID …`, where the two GIDs are in different subnets.

    ## Fix
    Set NCCL_CROSS_NIC=0 on all nodes and list the NICs in the same order in NCCL_IB_HCA, or add a route between the
    rails.

    ## Example
    In the log:

        ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, local GID ::ffff:10.1.1.5, remote GID ::ffff:10.1.2.6

    On every node:

        # before
        torchrun --nnodes 16 train.py
        # after
        export NCCL_CROSS_NIC=0 NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3
        torchrun --nnodes 16 train.py
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
    `Gloo connectFullMesh failed with … Connect timeout [none]` comes after about five times the timeout and names neither
    peer nor rank. With more than two nodes, the first rank to fail may not be the cause.

    ## Fix
    Run `ddpdoctor check -- LAUNCH` on every node. It tests which address each rank publishes (a loopback address or a docker
    bridge is wrong: set GLOO_SOCKET_IFNAME), whether all TCP ports are open between the nodes, and whether all agree on
    WORLD_SIZE.

    ## Example
    In the log:

        RuntimeError: Gloo connectFullMesh failed with [...] Connect timeout [none]

    On every node:

        getent hosts $(hostname)
        ddpdoctor check -- torchrun --nnodes 2 --master-addr node0 train.py
    """


NOT_FLUSHED = (
    r"Got completion (from peer \S+ )?with (error|status=)\s?([1-46-9]|1[01])\b",
    r"Got completion from peer \S+ with status=IBV_WC_(LOC|MW|REM|BAD|FATAL|RESP|GENERAL)_",
    r"async fatal event|local catastrophic error",
)


PAIRED = (r"ibv_modify_qp failed with 110 Connection timed out[^\n]{0,120}local GID [^\n]{0,120}remote GID",)


_GIDS = re.compile(r"(?P<side>local|remote) ?G[iI][dD]s?,? ?(?!index)(?P<gid>[0-9a-f:]+(?:\.\d+){0,3})")


@ib_completion_error.look
def work_request_failed(log: Log) -> Iterator[Finding]:
    """A failed work request; requests that were only flushed are consequences of a peer that does not respond."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.rdma import RETRIES
    from ddpdoctor.rules.log.signatures import signed

    only_flushed = not matching_lines(log, NOT_FLUSHED) and bool(matching_lines(log, RETRIES))
    for finding in signed(ib_completion_error, log):
        yield (
            replace(finding, role=Role.CONSEQUENCE, caused_by=ib_transport_retry_exceeded.code)
            if only_flushed
            else finding
        )


@rail_crossing.look
def rail_crossing_in_log(log: Log) -> Iterator[Finding]:
    """NCCL paired two NICs with addresses in different subnets."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, PAIRED) if _are_of_two_subnets(line.text)]
    if lines:
        title = "NCCL paired NICs of different subnets, which cannot reach each other"
        yield finding_of(log, lines, title, blames_speaker=True)


def _are_of_two_subnets(text: str) -> bool:
    """Whether both GIDs contain an IPv4 address, and the addresses differ before their last number."""
    networks = {m["gid"].rpartition(".")[0] for m in _GIDS.finditer(text) if m["gid"].startswith("::ffff:")}
    return len(networks) > 1
