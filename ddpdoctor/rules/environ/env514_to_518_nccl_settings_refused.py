"""ENV514 to ENV518: NCCL settings that NCCL itself refuses when it starts."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity
from ddpdoctor.rules import cause

__all__: list[str] = []


@cause(
    "ENV514",
    "nccl-oob-interface-not-found",
    Severity.ERROR,
    stage=CausalStage.INTERFACE,
    signatures=(r"no device found (matching|after excluding) \S+, verify NCCL_OOB_NET_IFNAME",),
)
def nccl_oob_interface_not_found() -> None:
    """NCCL_OOB_NET_IFNAME names a network device that NCCL does not find.

    ## Why it matters
    With NCCL_OOB_NET_ENABLE=1 the ranks find each other over the network plugin, and NCCL_OOB_NET_IFNAME selects its device:
    `no device found matching eth7, verify NCCL_OOB_NET_IFNAME`. The names are those of the plugin (mlx5_0 for InfiniBand), not
    interfaces.

    ## Fix
    Unset NCCL_OOB_NET_IFNAME and NCCL_OOB_NET_ENABLE, or name a device from the line `NET/IB : Using …` of that node.

    ## Example

        NCCL WARN no device found matching eth7, verify NCCL_OOB_NET_IFNAME

    On that node:

        # before
        export NCCL_OOB_NET_ENABLE=1 NCCL_OOB_NET_IFNAME=eth7
        # after
        export NCCL_OOB_NET_ENABLE=1 NCCL_OOB_NET_IFNAME=mlx5_0

    ## Source
    NCCL src/bootstrap.cc: netGetDevice, 2.23 and newer.
    """


@cause(
    "ENV515",
    "nccl-comm-id-invalid",
    Severity.ERROR,
    stage=CausalStage.ADDRESS,
    signatures=(
        r"Invalid NCCL_COMM_ID, please use format",
        r"ncclCommGetUniqueId should not be called when NCCL_COMM_ID is set",
        r"NCCL WARN Net : No valid (<IPv4_or_hostname>:<port>|\[IPv6\]:port) pair found",
    ),
)
def nccl_comm_id_invalid() -> None:
    """NCCL_COMM_ID is not an address with a port.

    ## Why it matters
    No rank can create a communicator: `Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>`. torch passes the
    address to NCCL itself; the variable is for programs without a launcher.

    ## Fix
    Unset NCCL_COMM_ID on all nodes.

    ## Example

        NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>

    On all nodes:

        # before
        export NCCL_COMM_ID=10.0.0.7
        # after
        unset NCCL_COMM_ID

    ## Source
    NCCL src/bootstrap.cc: bootstrapNetInit, bootstrapGetUniqueId; src/misc/socket.cc: ncclSocketGetAddrFromString.
    """


@cause(
    "ENV516",
    "nccl-nic-merge-invalid",
    Severity.ERROR,
    stage=CausalStage.INTERFACE,
    signatures=(
        r"Could not force merge NICs",
        r"Only matched \d+ devices, \d+ requested from",
        r"Specified fused NIC \S+ which has too many devices",
        r"Tried to merge too many NICs",
        r"Tried merging multiple devices together and failed",
        r"merge multiple devices together when NCCL_IB_MERGE_NICS=0",
        r"Fusing NET devices from different NUMA domains is not supported",
    ),
)
def nccl_nic_merge_invalid() -> None:
    """NCCL cannot merge the network adapters that its settings name.

    ## Why it matters
    NCCL_NET_FORCE_MERGE and NCCL_NET_MERGE_LEVEL join the ports of a node into one device. NCCL fails if a name is
    wrong, if there are too many ports, or if the ports belong to different NUMA nodes: `Could not force merge NICs
    mlx5_0,mlx5_9`.

    ## Fix
    Unset NCCL_NET_FORCE_MERGE, or set NCCL_NET_MERGE_LEVEL=LOC so that NCCL merges nothing.

    ## Example

        NCCL WARN TOPO/NET : Could not force merge NICs mlx5_0,mlx5_9. Please specify a valid NCCL_NET_FORCE_MERGE string.

    On that node:

        # before
        export NCCL_NET_FORCE_MERGE=mlx5_0,mlx5_9
        # after
        unset NCCL_NET_FORCE_MERGE

    ## Source
    NCCL src/graph/topo.cc: ncclTopoForceMerge, ncclTopoMakeVnic; src/transport/net_ib/init.cc: ncclIbMakeVDeviceInternal.
    """


@cause(
    "ENV517",
    "nccl-algorithm-unavailable",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"[Nn]o algorithm/protocol available",),
)
def nccl_algorithm_unavailable() -> None:
    """NCCL_ALGO or NCCL_PROTO leaves NCCL no algorithm for a collective.

    ## Why it matters
    The first collective that the setting leaves without an algorithm fails: `No algorithm/protocol available for
    function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree`. Tree works for all_reduce only, NVLS also
    for all_gather and reduce_scatter, and broadcast and reduce know only Ring.

    ## Fix
    Unset NCCL_ALGO and NCCL_PROTO, or limit them to one collective: `NCCL_ALGO="allreduce:tree"`.

    ## Example

        NCCL WARN No algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree

    On all nodes:

        # before
        export NCCL_ALGO=Tree
        # after
        export NCCL_ALGO="allreduce:tree"

    ## Source
    NCCL src/enqueue.cc: topoGetAlgoInfo, 2.18 to 2.30.7; src/graph/tuning.cc: ncclTopoTuneModel; the form
    `function:algorithm` is known since 2.24.
    """


@cause(
    "ENV518",
    "nccl-algorithm-name-unknown",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"NCCL WARN Unrecognized element token",
        r"NCCL WARN Unrecognized prefix token",
        r"NCCL WARN All entries except the first must have a prefix",
    ),
)
def nccl_algorithm_name_unknown() -> None:
    """NCCL cannot parse NCCL_ALGO or NCCL_PROTO.

    ## Why it matters
    The first communicator fails with `invalid usage`, and only NCCL's warning names the word: `Unrecognized element token "rings"
    when parsing "rings"`.

    ## Fix
    Unset NCCL_ALGO and NCCL_PROTO, or write names that this NCCL supports: `ring,tree`,
    `allreduce:ring;allgather:ring`.

    ## Example

        NCCL WARN Unrecognized element token "rings" when parsing "rings"

    On all nodes:

        # before
        export NCCL_ALGO=rings
        # after
        export NCCL_ALGO=ring

    ## Source
    NCCL src/graph/tuning.cc: parseList, 2.24 and newer.
    """
