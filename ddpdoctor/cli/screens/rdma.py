"""The RDMA part of `ddpdoctor net`: one row per port, and which of them NCCL would use."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.facts.net import Net
from ddpdoctor.facts.rdma import Rdma, RdmaPort

__all__ = ["rdma_pieces"]

NARROW = 70
SHOWN = 32


def rdma_pieces(net: Net, variables: Mapping[str, str], width: int) -> list[RenderableType]:
    """Empty for a machine without adapters."""
    rdma = net.rdma
    if rdma is None or not rdma.devices:
        return []
    spec = variables.get("NCCL_IB_HCA")
    taken = [f"{d.name}:{p.number}" for d, p in rdma.used(spec)]
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("RDMA port", "state", *(("rate", "link", "IPv4 GID") if wide else ()), "used by"):
        table.add_column(title, overflow="fold")
    for device, port in rdma.ports[:SHOWN]:
        name = f"{device.name}:{port.number}"
        middle = (_rate(port), port.link_layer or "n/a", _gid(port)) if wide else ()
        cells = (name, port.state or "n/a", *middle, "NCCL" if name in taken and _can(rdma, variables) else "")
        table.add_row(*(Text(cell) for cell in cells))
    return [Text(""), table, Text(_summary(rdma, variables, spec, taken))]


def _can(rdma: Rdma, variables: Mapping[str, str]) -> bool:
    """NCCL has what it needs to open the adapters."""
    off = variables.get("NCCL_IB_DISABLE") == "1" or variables.get("NCCL_NET", "").lower() == "socket"
    return bool(rdma.device_nodes) and rdma.has_library is not False and not off


def _rate(port: RdmaPort) -> str:
    return "n/a" if port.rate_gbit_per_s is None else f"{port.rate_gbit_per_s:g} Gb/s"


def _gid(port: RdmaPort) -> str:
    """The RoCE v2 entry with an IPv4 address."""
    if not port.is_roce:
        return "-"
    gid = next((g for g in port.gids if g.is_routable and g.address and g.address.version == 4), None)
    return "none" if gid is None else f"{gid.index}: {gid.address}"


def _summary(rdma: Rdma, variables: Mapping[str, str], spec: str | None, taken: list[str]) -> str:
    said = f"NCCL_IB_HCA={spec:.60}" if spec else "no NCCL_IB_HCA: all active ports"
    if variables.get("NCCL_IB_DISABLE") == "1":
        return "NCCL would use TCP: NCCL_IB_DISABLE=1."
    if variables.get("NCCL_NET", "").lower() == "socket":
        return "NCCL would use TCP: NCCL_NET=Socket."
    if not rdma.device_nodes:
        return "NCCL would use TCP: /dev/infiniband has no uverbs device."
    if rdma.has_library is False:
        return "NCCL would use TCP: libibverbs.so.1 was not found."
    if not taken:
        return f"NCCL would use TCP: it uses none of these ports ({said})."
    memory = rdma.peer_memory or ("dma-buf" if rdma.has_dma_buf else "none")
    return f"NCCL would use {', '.join(taken[:SHOWN])} ({said}). GPU memory for the adapters: {memory}."
