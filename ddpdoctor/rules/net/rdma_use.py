"""Which RDMA ports a job uses, and whether it uses RDMA at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import visible_gpus
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.rdma import Rdma, RdmaDevice, RdmaPort
from ddpdoctor.rules.environ.settings import number

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

__all__ = ["HCA", "named", "needs_rdma", "used"]

HCA = "NCCL_IB_HCA"


def needs_rdma(environ: Environ, net: Net, gpu: Gpu | None) -> Rdma:
    """The adapters of a node whose job would use them.

    Raises:
        CannotLook: no adapter, no GPU, a single-node job, or a setting that disables RDMA (ENV034, ENV035).
    """
    rdma = net.need(net.rdma, "rdma")
    if not rdma.devices:
        not_here("no RDMA adapter")
    if gpu is not None and not visible_gpus(environ, gpu):
        not_here("no NVIDIA GPU")
    if environ.is_multi_node is False and not net.spans_nodes(environ):
        not_here("the job has one node")
    setting = environ.settings.get
    if number(environ, "NCCL_IB_DISABLE") or (setting("NCCL_NET") or "").lower() == "socket":
        not_here("a setting disables RDMA in NCCL")
    return rdma


def used(environ: Environ, rdma: Rdma) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
    """The active ports that NCCL would use."""
    return rdma.used(environ.settings.get(HCA))


def named(environ: Environ, device: RdmaDevice) -> bool:
    """Whether NCCL_IB_HCA names the adapter, rather than only not excluding it."""
    spec = environ.settings.get(HCA) or ""
    items = spec.removeprefix("=").split(",")
    return not spec.startswith("^") and any(item.partition(":")[0] == device.name for item in items)
