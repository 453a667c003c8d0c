"""NET033, NET040, NET043: RDMA failures of a running job, as far as they can be seen before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.net.rdma_use import needs_rdma, used


@cause(
    "NET033",
    "gpudirect-rdma-broken",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(
        r"with (error|status=)\s?4\b[^\n]{0,300}vendor err 81",
        r"status=IBV_WC_LOC_PROT_ERR\(4\)[^\n]{0,300}vendor_err=81\b",
    ),
)
def gpudirect_rdma_broken(environ: Environ, net: Net, topo: Topo, gpu: Gpu) -> Iterator[Finding]:
    """Direct transfers between an RDMA adapter and GPU memory fail.

    ## Why it matters
    NCCL fails with `Got completion … with error 4 … vendor err 81` while RDMA tests from host memory pass. The reason is PCIe
    access control (ACS) on a switch above both, a virtual machine without address translation services, or an nvidia-peermem
    built for another driver.

    ## Fix
    Disable ACS on the bridges above the GPU and the adapter of that node, and reload nvidia-peermem; until then set
    NCCL_NET_GDR_LEVEL=LOC for the job.

    ## Example
    In the log:

        NET/IB : Got completion from peer 10.0.0.2<38560> with error 4, opcode 0, len 0, vendor err 81

    On every node, until ACS is off:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_NET_GDR_LEVEL=LOC
        torchrun --nnodes 2 train.py

    ## Source
    NCCL's troubleshooting page on ACS; the ACS control register of each bridge, where GPU and adapter share a switch.
    """
    rdma = needs_rdma(environ, net, gpu)
    if environ.settings.get("NCCL_NET_GDR_LEVEL") in ("LOC", "0") or not (rdma.peer_memory or rdma.has_dma_buf):
        return
    names = {device.name for device, _ in used(environ, rdma)}
    near = {nic.name: (nic.pci_path or "").split("/") for nic in topo.nics if nic.name in names and nic.pci_path}
    if any(d.virtualization_mode for d in gpu.devices):
        return  # in a virtual machine the host controls ACS
    for node in topo.all_gpus():
        for bridge in node.acs_bridges or ():
            nic = next((name for name, path in near.items() if bridge in path), None)
            if nic is not None:
                yield Finding(
                    f"ACS is on in bridge {bridge} above GPU {node.index} and {nic}; direct transfers may fail",
                    (Evidence(f"topo.gpus[{node.index}].acs_bridges", bridge, "none"),),
                    fix_command=f"setpci -v -s {bridge} ECAP_ACS+6.w=0000",
                    severity=Severity.WARNING,
                )
                return


@cause(
    "NET040",
    "ib-link-flap",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(r"Got (non-fatal )?async event ?: port error",),
)
def ib_link_flap(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The link of an RDMA port is flapping.

    ## Why it matters
    The node with the bad cable prints only `NET/IB : mlx5_3:1 Got async event : port error`. The line that ends the job,
    status 12, appears on other nodes, and the link may be up again when it is checked.

    ## Fix
    Take the node out of service and replace the cable or the transceiver; with NCCL_IB_TIMEOUT=22, jobs survive short
    interruptions.

    ## Example
    In the log:

        NCCL WARN NET/IB : mlx5_3:1 Got async event : port error

    On that node:

        cat /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed
        dmesg | grep mlx5

    ## Source
    NCCL src/transport/net_ib; /sys/class/infiniband/*/ports/*/counters/link_downed, read twice.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        count = port.growth.get("link_downed")
        if count:
            yield Finding(
                f"RDMA port {port.number} of {device.name} lost its link {count} time{'' if count == 1 else 's'} "
                f"in {rdma.sample_seconds or 0:g} s",
                (Evidence("net.rdma.devices", f"{device.name}:{port.number} link_downed grew by {count}", "0"),),
            )


@cause(
    "NET043",
    "efa-plugin-mismatch",
    Severity.ERROR,
    yields_to=("NET044", "HOST003", "LOG521"),
    signatures=(r"NCCL WARN NET/OFI",),
)
def efa_plugin_mismatch(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The plugin through which NCCL uses the EFA adapters is missing or incompatible.

    ## Why it matters
    After an NCCL update in the image NCCL fails with `NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0.
    RC: -22`, while the older image works on the same nodes. Without the plugin NCCL uses TCP and prints nothing.

    ## Fix
    Update the EFA installer, aws-ofi-nccl and NCCL together in the image; the security group must allow all traffic from
    itself.

    ## Example
    In the log:

        NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -22, Error: Invalid argument

    On every node, if the plugin is installed but not found:

        # before
        export LD_LIBRARY_PATH=/usr/local/cuda/lib64
        # after
        export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:/usr/local/cuda/lib64

    ## Source
    AWS documentation of EFA and NCCL; libnccl-net.so on LD_LIBRARY_PATH, NCCL_NET_PLUGIN.
    """
    rdma = needs_rdma(environ, net, gpu)
    adapters = [d for d in rdma.devices if d.needs_plugin]
    is_found = rdma.plugin is not None or rdma.has_plugin
    if not adapters or is_found or environ.settings.get("NCCL_NET_PLUGIN", "none") != "none":
        return
    if rdma.has_plugin is None and any(name.startswith(("FI_", "OFI_NCCL_")) for name in environ.settings):
        return  # the plugin was configured; it may be on the loader's own path
    yield Finding(
        f"libnccl-net.so (aws-ofi-nccl) not found for {len(adapters)} EFA adapter{'' if len(adapters) == 1 else 's'}",
        (Evidence("net.rdma.plugin", "none", "libnccl-net.so of aws-ofi-nccl"),),
        fix_command="export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH",
        severity=Severity.WARNING if environ.is_multi_node else Severity.NOTE,
    )
