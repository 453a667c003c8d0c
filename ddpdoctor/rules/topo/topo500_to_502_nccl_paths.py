"""TOPO500 to TOPO502: network devices and paths between GPUs, as NCCL reports them."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity, Speaker
from ddpdoctor.rules import cause

__all__: list[str] = []


@cause(
    "TOPO500",
    "nccl-network-devices-differ",
    Severity.ERROR,
    stage=CausalStage.INTERFACE,
    signatures=(
        r"Detected mixed local (Net|CollNet) device counts across ranks",
        r"has a different number of devices=\d+ as remote",
    ),
)
def nccl_network_devices_differ() -> None:
    """The nodes have different numbers of network devices for NCCL.

    ## Why it matters
    `Detected mixed local Net device counts across ranks (min 7, max 8)`: on one node an adapter is missing, down, not visible in
    the container, or excluded by NCCL_IB_HCA. With NCCL_IGNORE_NET_MISMATCH=1 the job starts, and may hang because an adapter has
    no partner.

    ## Fix
    Compare the lines `NET/IB : Using …` of all nodes (NCCL_DEBUG=INFO), repair the adapter that is missing, or list the same
    ones on all nodes in NCCL_IB_HCA.

    ## Example

        NCCL WARN Detected mixed local Net device counts across ranks (min 7, max 8). Set NCCL_IGNORE_NET_MISMATCH=1 to continue.

    On all nodes:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3
        torchrun --nnodes 2 train.py

    ## Source
    NCCL src/init.cc: initTransportsRank (2.29 and newer); src/transport/net_ib.cc: ncclIbConnect (2.20 to 2.23).
    """


@cause(
    "TOPO501",
    "nccl-no-transport",
    Severity.ERROR,
    stage=CausalStage.INTERFACE,
    signatures=(r"No transport found for rank \d+", r"Could not find any local path from gpu \d+ to net"),
)
def nccl_no_transport() -> None:
    """NCCL has no transport between two ranks.

    ## Why it matters
    `No transport found for rank 0[…] -> rank 1[…]`: P2P, shared memory and the network were all disabled or do not apply.
    NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1 and a network plugin without a device is the usual combination; so is a topology
    file that leaves out the network adapters.

    ## Fix
    Unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET, NCCL_NET_PLUGIN and NCCL_TOPO_FILE, and start again with NCCL_DEBUG=INFO.

    ## Example

        NCCL WARN No transport found for rank 0[1b000] -> rank 1[1c000]

    On all nodes:

        # before
        export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
        # after
        unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE

    ## Source
    NCCL src/transport.cc: selectTransport; src/graph/topo.cc: ncclTopoGetLocalNetType.
    """


@cause(
    "TOPO502",
    "nic-link-types-mixed",
    Severity.ERROR,
    stage=CausalStage.INTERFACE,
    speaker=Speaker.LINK_END,
    signatures=(
        r"Attempted to (connect|merge) incompatible devices",
        r"device is incompatible with the local \[\d+\]",
        r"(Can't (connect|merge) net|merge multiple) devices [^\n]{0,20}with different link_layer",
    ),
)
def nic_link_types_mixed() -> None:
    """NCCL paired an InfiniBand port with an Ethernet (RoCE) port.

    ## Why it matters
    `Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [2]mlx5_2:1/RoCE`: a node has adapters of both
    kinds, and NCCL uses them in order. A single RoCE port for storage is enough.

    ## Fix
    Set NCCL_IB_HCA on all nodes to the ports of one kind. `ibstat` shows the link layer of each port.

    ## Example

        NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [2]mlx5_2:1/RoCE. Try selecting …

    On all nodes, if mlx5_2 is the Ethernet port:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_IB_HCA=^=mlx5_2
        torchrun --nnodes 2 train.py

    ## Source
    NCCL src/transport/net_ib/connect.cc: ncclIbConnectImpl, ncclIbAcceptImpl; src/transport/net_ib.cc until 2.28.
    """
