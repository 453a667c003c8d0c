"""NET033, NET040, NET043: RDMA that fails in a running job, as far as it shows before."""

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
    signatures=(r"with (error|status=)\s?4\b[^\n]*vendor err 81",),
)
def gpudirect_rdma_broken(environ: Environ, net: Net, topo: Topo, gpu: Gpu) -> Iterator[Finding]:
    """Direct transfers between an RDMA adapter and the memory of a GPU fail, or will.

    ## Why it matters
    "Got completion … with error 4 … vendor err 81" while RDMA tests from host memory pass: PCIe access control (ACS) on a
    switch above both, a virtual machine without address translation services, or an nvidia-peermem of another driver.

    ## Fix
    Switch ACS off on the bridges above GPU and adapter and load nvidia-peermem anew; NCCL_NET_GDR_LEVEL=LOC avoids the way until
    then.

    ## Source
    NCCL's troubleshooting page on ACS; the ACS control register of each bridge, where GPU and adapter share a switch.
    """
    rdma = needs_rdma(environ, net, gpu)
    if environ.settings.get("NCCL_NET_GDR_LEVEL") in ("LOC", "0") or not (rdma.peer_memory or rdma.has_dma_buf):
        return
    names = {device.name for device, _ in used(environ, rdma)}
    near = {nic.name: (nic.pci_path or "").split("/") for nic in topo.nics if nic.name in names and nic.pci_path}
    if any(d.virtualization_mode for d in gpu.devices):
        return  # the host of a virtual machine decides
    for each in topo.all_gpus():
        for bridge in each.acs_bridges or ():
            nic = next((name for name, path in near.items() if bridge in path), None)
            if nic is not None:
                yield Finding(
                    f"ACS is on in bridge {bridge} above GPU {each.index} and {nic}: direct transfers between them may fail; "
                    "expected off",
                    (Evidence(f"topo.gpus[{each.index}].acs_bridges", bridge, "none"),),
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
    """An RDMA link went down for a moment.

    ## Why it matters
    The node with the bad cable prints only "NET/IB : mlx5_3:1 Got async event : port error"; the line that ends the job,
    status 12, appears on other nodes, which get the blame. The link may be up again when somebody looks.

    ## Fix
    Take the node out and replace the cable or the transceiver; NCCL_IB_TIMEOUT=22 lasts through short losses.

    ## Source
    NCCL src/transport/net_ib; /sys/class/infiniband/*/ports/*/counters/link_downed, read twice.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        count = port.growth.get("link_downed")
        if count:
            yield Finding(
                f"RDMA port {port.number} of {device.name} lost its link {count} times in {rdma.sample_seconds or 0:g} s; "
                "expected a link that stays",
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
    """EFA adapters are here, and the plugin through which NCCL uses them does not fit or is missing.

    ## Why it matters
    "NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -22" after an update of NCCL in the image, while
    the older image runs on the same nodes. Without the plugin NCCL takes TCP without a word.

    ## Fix
    Update the EFA installer, aws-ofi-nccl and NCCL together; the security group must allow traffic from itself.

    ## Source
    AWS documentation of EFA and NCCL; libnccl-net.so on LD_LIBRARY_PATH, NCCL_NET_PLUGIN.
    """
    rdma = needs_rdma(environ, net, gpu)
    adapters = [d for d in rdma.devices if d.needs_plugin]
    is_found = rdma.plugin is not None or rdma.has_plugin
    if not adapters or is_found or environ.settings.get("NCCL_NET_PLUGIN", "none") != "none":
        return
    if rdma.has_plugin is None and any(name.startswith(("FI_", "OFI_NCCL_")) for name in environ.settings):
        return  # somebody set the plugin up; it may be on the loader's own path
    yield Finding(
        f"{len(adapters)} EFA adapters are here, and the loader finds no libnccl-net.so; expected the plugin aws-ofi-nccl",
        (Evidence("net.rdma.plugin", "none", "libnccl-net.so of aws-ofi-nccl"),),
        fix_command="export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH",
        severity=Severity.WARNING if environ.is_multi_node else Severity.NOTE,
    )
