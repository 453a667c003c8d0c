"""ENV032 to ENV036, ENV047: settings that forbid NCCL a transport between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, active_ports, number, uses_plugin, value

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.net import Net
    from ddpdoctor.facts.topo import Topo

__all__ = [
    "nccl_gdr_disabled",
    "nccl_ib_disabled",
    "nccl_ignore_disabled_p2p",
    "nccl_net_forced",
    "nccl_p2p_disabled",
    "nccl_shm_disabled",
]

P2P = "NCCL_P2P_DISABLE"
LEVEL = "NCCL_P2P_LEVEL"
NO_TRANSPORTS = ("tcp", "sockets", "sock", "eth", "ethernet", "infiniband", "roce", "rdma", "verbs", "ibverbs")
"""Common names for the transports that NCCL calls Socket and IB."""


def _off(environ: Environ) -> str | None:
    """The setting that disables peer-to-peer, as ncclGetLevel in NCCL's src/graph/paths.cc reads the two."""
    if number(environ, P2P) == 1:
        return P2P
    level = value(environ, LEVEL) or ""
    is_zero = level[:1].isdecimal() and level.isascii() and number(environ, LEVEL) == 0
    return LEVEL if level == "LOC" or is_zero else None


def _peers(gpu: Gpu | None, topo: Topo | None) -> tuple[int, int] | None:
    """The number of GPU pairs, and how many of them have direct access; None if unknown."""
    if gpu is not None and len(gpu.devices) == 1:
        return 0, 0
    direct = [pair for pair in (topo.pairs if topo is not None else ()) if "OK" in (pair.read, pair.nvlink)]
    unknown = [pair for pair in (topo.pairs if topo is not None else ()) if pair.read is None and pair.nvlink is None]
    if topo is None or not topo.pairs or unknown:
        return None
    return len(topo.pairs), len(direct)


@cause("ENV032", "nccl-p2p-disabled", Severity.WARNING)
def nccl_p2p_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL's peer-to-peer transport is disabled although the GPUs support it.

    ## Why it matters
    All traffic between the GPUs of a node then goes through host memory, NVLink is idle, and no message reports it:
    8 A100 with NVLink have run over shared memory this way. The setting is usually left over from debugging another
    fault.

    ## Fix
    Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, unless this machine hangs without them.

    ## Example

        NCCL_P2P_DISABLE=1 disables direct GPU access (28 of 28 pairs support it)

        # before
        export NCCL_P2P_DISABLE=1
        # after
        unset NCCL_P2P_DISABLE

    ## Source
    NCCL documentation, NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; NVIDIA/nccl-tests#228.
    """
    name, peers = _off(environ), _peers(gpu, topo)
    if name is None or (peers is not None and not peers[1]):
        return
    if peers is None:
        wrong = "disables direct access between the GPUs of a node, including NVLink"
    else:
        wrong = f"disables direct GPU access ({peers[1]} of {peers[0]} pairs support it)"
    expected = "unset" if name == P2P else "unset, or NVL, PIX, PXB, PHB, or SYS"
    yield about(environ, name, wrong, expected, severity=None if peers else Severity.NOTE)


@cause("ENV033", "nccl-shm-disabled", Severity.WARNING)
def nccl_shm_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_SHM_DISABLE=1 forbids shared memory, so the ranks of a node communicate through the network card.

    ## Why it matters
    GPUs without direct access to each other then send data over the network that could stay in memory: slow, and no
    message reports it. With peer-to-peer disabled as well, all traffic of the node takes this path.

    ## Fix
    Unset NCCL_SHM_DISABLE; if it was set because /dev/shm is too small, enlarge that instead (`docker run
    --shm-size=8g`).

    ## Example

        NCCL_SHM_DISABLE=1 sends traffic between GPUs of this node through the network card

        # before
        export NCCL_SHM_DISABLE=1
        # after
        unset NCCL_SHM_DISABLE

    ## Source
    NCCL documentation, NCCL_SHM_DISABLE.
    """
    peers = _peers(gpu, topo)
    if number(environ, "NCCL_SHM_DISABLE") != 1 or peers == (0, 0):
        return
    off = _off(environ)
    all_direct = peers is not None and peers[0] == peers[1]
    wrong = "sends traffic between GPUs of this node through the network card"
    if off is not None:
        wrong = f"and {off}={value(environ, off)} send all traffic of this node through the network card"
    softer = Severity.NOTE if all_direct and off is None else None
    yield about(environ, "NCCL_SHM_DISABLE", wrong, "unset", severity=softer)


@cause("ENV034", "nccl-ib-disabled", Severity.WARNING)
def nccl_ib_disabled(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """NCCL_IB_DISABLE=1 although the node has active RDMA ports.

    ## Why it matters
    NCCL uses TCP between the nodes, 10 times slower or more, and no message reports it. The setting is usually left
    over from debugging, or from a machine without InfiniBand.

    ## Fix
    Unset NCCL_IB_DISABLE.

    ## Example

        NCCL_IB_DISABLE=1 makes NCCL use TCP between nodes (8 RDMA ports are up here)

        # before
        export NCCL_IB_DISABLE=1
        # after
        unset NCCL_IB_DISABLE

    ## Source
    NCCL documentation, NCCL_IB_DISABLE.
    """
    ports = active_ports(environ, net)
    if not number(environ, "NCCL_IB_DISABLE") or ports == 0 or uses_plugin(environ):
        return
    wrong = f"makes NCCL use TCP between nodes{_ports_up(ports)}"
    yield about(environ, "NCCL_IB_DISABLE", wrong, "unset", severity=None if ports else Severity.NOTE)


def _ports_up(ports: int | None) -> str:
    return f" ({ports} RDMA port{'s are' if ports > 1 else ' is'} up here)" if ports else ""


@cause("ENV035", "nccl-net-forced", Severity.WARNING, signatures=(r"Error: network \S+ not found",))
def nccl_net_forced(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """NCCL_NET selects a network that does not exist, or a slower one than the node has.

    ## Why it matters
    NCCL_NET=Socket gives up the bandwidth of RDMA. A name that neither NCCL nor a plugin knows ends the job with
    `Failed to initialize any NET plugin`, in older releases with `Error: network … not found`.

    ## Fix
    Unset NCCL_NET, or install the plugin that it names.

    ## Example

        NCCL WARN Error: network AWS Libfabric not found.

        # before
        export NCCL_NET="AWS Libfabric"     # the plugin is not installed
        # after
        unset NCCL_NET

    ## Source
    NCCL documentation, NCCL_NET; src/plugin/net.cc.
    """
    name = (value(environ, "NCCL_NET") or "").lower()
    plugin = (value(environ, "NCCL_NET_PLUGIN") or "").lower()
    ports = active_ports(environ, net)
    has_plugin = net.rdma.has_plugin if net is not None and net.rdma is not None else None
    if name == "socket" and ports != 0:
        wrong = f"makes NCCL use TCP between nodes{_ports_up(ports)}"
        yield about(environ, "NCCL_NET", wrong, "unset", severity=None if ports else Severity.NOTE)
    elif name == "ib" and ports == 0:
        yield about(environ, "NCCL_NET", "requires RDMA, but no RDMA port is up here", "unset, or Socket")
    elif name in NO_TRANSPORTS and plugin in ("", "none"):
        wrong = "is not a network of NCCL (use IB, Socket, or a plugin's name)"
        yield about(environ, "NCCL_NET", wrong, "IB, Socket, or the name of a plugin")
    elif name and name not in ("ib", "socket") and plugin == "none":
        wrong = "names a plugin, but NCCL_NET_PLUGIN=none forbids loading one"
        yield about(environ, "NCCL_NET", wrong, "one of the two unset")
    elif (name not in ("", "ib", "socket") or plugin not in ("", "none")) and has_plugin is False:
        setting = "NCCL_NET_PLUGIN" if plugin not in ("", "none") else "NCCL_NET"
        wrong = "names a network plugin whose library is not found here"
        yield about(environ, setting, wrong, "its folder on LD_LIBRARY_PATH, or unset")


@cause("ENV036", "nccl-gdr-disabled", Severity.WARNING)
def nccl_gdr_disabled(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """GPUDirect RDMA is disabled by a setting.

    ## Why it matters
    Data for other nodes is first copied through host memory; only the lower bandwidth shows it.

    ## Fix
    Unset NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ, and NCCL_DMABUF_ENABLE.

    ## Example

        NCCL_NET_GDR_LEVEL=LOC disables GPUDirect RDMA

        # before
        export NCCL_NET_GDR_LEVEL=LOC
        # after
        unset NCCL_NET_GDR_LEVEL

    ## Source
    NCCL documentation of these three.
    """
    ports = active_ports(environ, net)
    if ports == 0:
        return
    level = value(environ, "NCCL_NET_GDR_LEVEL") or ""
    unsure = None if ports else Severity.NOTE
    if level == "LOC" or (level[:1].isdecimal() and level.isascii() and number(environ, "NCCL_NET_GDR_LEVEL") == 0):
        wrong = "disables GPUDirect RDMA"
        yield about(environ, "NCCL_NET_GDR_LEVEL", wrong, "unset, or PIX, PXB, PHB, or SYS", severity=unsure)
    if value(environ, "NCCL_NET_GDR_READ") and number(environ, "NCCL_NET_GDR_READ") == 0:
        # Without NVLink, off is also NCCL's own default.
        wrong = "stops the network card from reading GPU memory when sending"
        yield about(environ, "NCCL_NET_GDR_READ", wrong, "unset", severity=Severity.NOTE)
    if value(environ, "NCCL_DMABUF_ENABLE") and number(environ, "NCCL_DMABUF_ENABLE") == 0:
        wrong = "makes GPUDirect RDMA depend on the kernel module nvidia_peermem"
        yield about(environ, "NCCL_DMABUF_ENABLE", wrong, "unset", severity=Severity.NOTE)


@cause("ENV047", "nccl-ignore-disabled-p2p", Severity.WARNING)
def nccl_ignore_disabled_p2p(environ: Environ) -> Iterator[Finding]:
    """NCCL_IGNORE_DISABLED_P2P hides a broken NVLink path.

    ## Why it matters
    NCCL normally refuses to start when GPUs are connected by NVLink but cannot reach each other over it. With this
    switch it starts, slowly, and the fault stays hidden.

    ## Fix
    Unset NCCL_IGNORE_DISABLED_P2P and repair the NVLink path (`ddpdoctor topo` shows it).

    ## Example

        NCCL_IGNORE_DISABLED_P2P=1 lets NCCL start over a broken NVLink path

        # before
        export NCCL_IGNORE_DISABLED_P2P=1
        # after
        unset NCCL_IGNORE_DISABLED_P2P

    ## Source
    NCCL src/graph/paths.cc: ncclTopoCheckP2p.
    """
    if number(environ, "NCCL_IGNORE_DISABLED_P2P"):
        wrong = "lets NCCL start over a broken NVLink path"
        yield about(environ, "NCCL_IGNORE_DISABLED_P2P", wrong, "unset, so that the fault is reported")
