"""ENV032 to ENV036, ENV047: settings that take a way between ranks from NCCL."""

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
"""Words that people write for the transports that NCCL calls Socket and IB."""


def _off(environ: Environ) -> str | None:
    """The setting that switches peer-to-peer off, as ncclGetLevel in NCCL's src/graph/paths.cc reads the two."""
    if number(environ, P2P) == 1:
        return P2P
    level = value(environ, LEVEL) or ""
    is_zero = level[:1].isdecimal() and level.isascii() and number(environ, LEVEL) == 0
    return LEVEL if level == "LOC" or is_zero else None


def _peers(gpu: Gpu | None, topo: Topo | None) -> tuple[int, int] | None:
    """Pairs of GPUs, and how many of them can reach each other directly; None when that is not known."""
    if gpu is not None and len(gpu.devices) == 1:
        return 0, 0
    told = [pair for pair in (topo.pairs if topo is not None else ()) if "OK" in (pair.read, pair.nvlink)]
    silent = [p for p in (topo.pairs if topo is not None else ()) if p.read is None and p.nvlink is None]
    if topo is None or not topo.pairs or silent:
        return None
    return len(topo.pairs), len(told)


@cause("ENV032", "nccl-p2p-disabled", Severity.WARNING)
def nccl_p2p_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL's peer-to-peer transport is switched off although the GPUs have it.

    ## Why it matters
    Everything between the GPUs of a node then goes through host memory, NVLink stays idle, and no message says so. It is
    usually left over from a search for some other fault, and 8 A100 with NVLink have run over shared memory this way.

    ## Fix
    Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, unless this machine hangs without them.

    ## Source
    NCCL documentation, NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; NVIDIA/nccl-tests#228.
    """
    name, peers = _off(environ), _peers(gpu, topo)
    if name is None or (peers is not None and not peers[1]):
        return
    if peers is None:
        wrong = "switches direct access between the GPUs of a node off, which costs NVLink where there is one"
    else:
        wrong = f"switches direct access off, which {peers[1]} of {peers[0]} pairs of GPUs have here"
    expected = "it to be unset" if name == P2P else "it to be unset, or NVL, PIX, PXB, PHB or SYS"
    yield about(environ, name, wrong, expected, severity=None if peers else Severity.NOTE)


@cause("ENV033", "nccl-shm-disabled", Severity.WARNING)
def nccl_shm_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_SHM_DISABLE=1 takes shared memory from the ranks of a node, so that they talk through the network card.

    ## Why it matters
    GPUs without direct access to each other then send over the network what could stay in memory: slow, without any
    message. With peer-to-peer off as well, all traffic of the node does.

    ## Fix
    Unset NCCL_SHM_DISABLE. If it was set because /dev/shm is small, make that larger (docker run --shm-size=8g).

    ## Source
    NCCL documentation, NCCL_SHM_DISABLE.
    """
    peers = _peers(gpu, topo)
    if number(environ, "NCCL_SHM_DISABLE") != 1 or peers == (0, 0):
        return
    off = _off(environ)
    all_direct = peers is not None and peers[0] == peers[1]
    wrong = "leaves ranks of a node without direct access to each other nothing but the network card"
    if off is not None:
        wrong = f"and {off}={value(environ, off)} leave the ranks of a node nothing but the network card"
    softer = Severity.NOTE if all_direct and off is None else None
    yield about(environ, "NCCL_SHM_DISABLE", wrong, "it to be unset", severity=softer)


@cause("ENV034", "nccl-ib-disabled", Severity.WARNING)
def nccl_ib_disabled(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """NCCL_IB_DISABLE=1 although the node has active RDMA ports.

    ## Why it matters
    NCCL takes TCP between the nodes, ten times slower and more, and nothing but the time tells. Usually it is left over
    from a search for a fault, or from a machine without InfiniBand.

    ## Fix
    Unset NCCL_IB_DISABLE.

    ## Source
    NCCL documentation, NCCL_IB_DISABLE.
    """
    ports = active_ports(environ, net)
    if not number(environ, "NCCL_IB_DISABLE") or ports == 0 or uses_plugin(environ):
        return
    here = f"although {ports} RDMA ports are up here" if ports else "where there is RDMA"
    wrong = f"makes NCCL use TCP between nodes {here}"
    yield about(environ, "NCCL_IB_DISABLE", wrong, "it to be unset", severity=None if ports else Severity.NOTE)


@cause("ENV035", "nccl-net-forced", Severity.WARNING, signatures=(r"Error: network \S+ not found",))
def nccl_net_forced(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """NCCL_NET forces a network that is slower than what is there, or that is not there.

    ## Why it matters
    NCCL_NET=Socket gives the bandwidth of RDMA away. A name that neither NCCL nor a plugin has ends the job with
    "Failed to initialize any NET plugin", in older releases with "Error: network … not found".

    ## Fix
    Unset NCCL_NET, or install the plugin that it names.

    ## Source
    NCCL documentation, NCCL_NET; src/plugin/net.cc.
    """
    name = (value(environ, "NCCL_NET") or "").lower()
    plugin = (value(environ, "NCCL_NET_PLUGIN") or "").lower()
    ports = active_ports(environ, net)
    has_plugin = net.rdma.has_plugin if net is not None and net.rdma is not None else None
    if name == "socket" and ports != 0:
        wrong = "makes NCCL use TCP between nodes" + (f" although {ports} RDMA ports are up here" if ports else "")
        yield about(environ, "NCCL_NET", wrong, "it to be unset", severity=None if ports else Severity.NOTE)
    elif name == "ib" and ports == 0:
        yield about(environ, "NCCL_NET", "forces RDMA, and no RDMA port is up here", "it to be unset, or Socket")
    elif name in NO_TRANSPORTS and plugin in ("", "none"):
        yield about(environ, "NCCL_NET", "names no network of NCCL", "IB, Socket, or the name of a plugin")
    elif name and name not in ("ib", "socket") and plugin == "none":
        wrong = "names a plugin, and NCCL_NET_PLUGIN=none keeps NCCL from loading one"
        yield about(environ, "NCCL_NET", wrong, "one of the two to be unset")
    elif (name not in ("", "ib", "socket") or plugin not in ("", "none")) and has_plugin is False:
        setting = "NCCL_NET_PLUGIN" if plugin not in ("", "none") else "NCCL_NET"
        wrong = "names a network plugin, and the loader finds no such library here"
        yield about(environ, setting, wrong, "its folder on LD_LIBRARY_PATH, or it to be unset")


@cause("ENV036", "nccl-gdr-disabled", Severity.WARNING)
def nccl_gdr_disabled(environ: Environ, net: Net | None = None) -> Iterator[Finding]:
    """GPUDirect RDMA is switched off by a setting.

    ## Why it matters
    What goes to other nodes is first copied through host memory; nothing but the bandwidth shows it.

    ## Fix
    Unset NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ and NCCL_DMABUF_ENABLE.

    ## Source
    NCCL documentation of these three.
    """
    ports = active_ports(environ, net)
    if ports == 0:
        return
    level = value(environ, "NCCL_NET_GDR_LEVEL") or ""
    unsure = None if ports else Severity.NOTE
    if level == "LOC" or (level[:1].isdecimal() and level.isascii() and number(environ, "NCCL_NET_GDR_LEVEL") == 0):
        wrong = "switches GPUDirect RDMA off"
        yield about(environ, "NCCL_NET_GDR_LEVEL", wrong, "it to be unset, or PIX, PXB, PHB or SYS", severity=unsure)
    if value(environ, "NCCL_NET_GDR_READ") and number(environ, "NCCL_NET_GDR_READ") == 0:
        # Off is also what NCCL itself takes where there is no NVLink.
        wrong = "keeps the network card from reading GPU memory when sending"
        yield about(environ, "NCCL_NET_GDR_READ", wrong, "it to be unset", severity=Severity.NOTE)
    if value(environ, "NCCL_DMABUF_ENABLE") and number(environ, "NCCL_DMABUF_ENABLE") == 0:
        wrong = "leaves GPUDirect RDMA to the module nvidia_peermem, which must then be loaded"
        yield about(environ, "NCCL_DMABUF_ENABLE", wrong, "it to be unset", severity=Severity.NOTE)


@cause("ENV047", "nccl-ignore-disabled-p2p", Severity.WARNING)
def nccl_ignore_disabled_p2p(environ: Environ) -> Iterator[Finding]:
    """NCCL_IGNORE_DISABLED_P2P hides a broken NVLink path.

    ## Why it matters
    When GPUs are joined by NVLink and cannot reach each other over it, NCCL refuses to start. This switch makes it start
    all the same, slowly, and the fault stays unseen.

    ## Fix
    Unset NCCL_IGNORE_DISABLED_P2P and repair the NVLink path (ddpdoctor topo shows it).

    ## Source
    NCCL src/graph/paths.cc: ncclTopoCheckP2p.
    """
    if number(environ, "NCCL_IGNORE_DISABLED_P2P"):
        wrong = "lets NCCL start over a broken NVLink path"
        yield about(environ, "NCCL_IGNORE_DISABLED_P2P", wrong, "it to be unset, so that the fault is reported")
