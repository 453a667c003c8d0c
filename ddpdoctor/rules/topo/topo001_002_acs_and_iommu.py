"""TOPO001, TOPO002: PCIe bridges and an IOMMU that redirect or block traffic between GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import CannotLook, Why, not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

TRANSLATED = ("DMA", "DMA-FQ")


def _bare_metal(gpu: Gpu | None) -> None:
    if gpu is not None and any(d.virtualization_mode for d in gpu.devices):
        not_here("virtual machine: the host controls ACS and the IOMMU")


def _has_peers(topo: Topo) -> bool:
    """Whether any pair of GPUs has peer access over PCIe."""
    return any(p.read == "OK" for p in topo.unlinked_pairs())


@cause("TOPO001", "acs-redirects-p2p", Severity.WARNING)
def acs_redirects_p2p(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """PCIe access control (ACS) redirects traffic between the GPUs to the host.

    ## Why it matters
    init_process_group passes and the GPUs show 100 % utilization, but no data moves; the timeout comes 10 to 30 minutes later.
    Copies between GPUs are slow, hang or return wrong values.

    ## Fix
    Disable ACS on the bridges above the GPUs of that node, in the BIOS or as root with setpci. Until then set
    NCCL_P2P_DISABLE=1 for the job.

    ## Example
    ddpdoctor's message:

        ACS is on in 2 PCIe bridges above the GPUs (0000:16:02.0, 0000:16:03.0)

    On that node, as root, for each bridge:

        # before
        lspci -vvv -s 0000:16:02.0 | grep ACSCtl
        ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+
        # after
        setpci -v -s 0000:16:02.0 ECAP_ACS+6.w=0000

    ## Source
    NCCL's troubleshooting page (lspci -vvv: ACSCtl SrcValid+); the ACS control register of each bridge, read from sysfs.
    """
    _bare_metal(gpu)
    gpus = topo.all_gpus()
    if len(gpus) < 2 and not topo.nics:
        not_here("only one GPU")
    known = [g for g in gpus if g.acs_bridges is not None]
    if not known:
        why = Why.NEEDS_ROOT if any(g.pci_path for g in gpus) else Why.NOT_HERE
        raise CannotLook("needs root to read the configuration of the PCIe bridges", why)
    bridges = sorted({name for g in known for name in g.acs_bridges or ()})
    if bridges and (topo.nics or _has_peers(topo)):
        yield Finding(
            f"ACS is on in {len(bridges)} PCIe bridge{'' if len(bridges) == 1 else 's'} above the GPUs "
            f"({', '.join(bridges[:4])}{', …' if len(bridges) > 4 else ''})",
            (Evidence("topo.gpus", f"ACS on {bridges[0]}", "SrcValid-, ReqRedir-"),),
            fix_command=f"setpci -v -s {bridges[0]} ECAP_ACS+6.w=0000",
        )


@cause("TOPO002", "iommu-translates-p2p", Severity.WARNING)
def iommu_translates_p2p(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The IOMMU translates the traffic of the GPUs; it is not in pass-through mode.

    ## Why it matters
    On bare metal, copies between GPUs are slow, hang or return wrong values, as with ACS.

    ## Fix
    Add `iommu=pt` to the kernel command line of that node and reboot it, or disable the IOMMU in its BIOS.

    ## Example
    ddpdoctor's message:

        the IOMMU translates the traffic of 2 GPUs (group type DMA)

    In /etc/default/grub on that node, then `update-grub` and a reboot:

        # before
        GRUB_CMDLINE_LINUX="quiet"
        # after
        GRUB_CMDLINE_LINUX="quiet iommu=pt"

    ## Source
    /sys/bus/pci/devices/*/iommu_group/type: identity is pass-through.
    """
    _bare_metal(gpu)
    gpus = topo.all_gpus()
    if len(gpus) < 2:
        not_here("only one GPU")
    if all(g.iommu is None for g in gpus):
        raise CannotLook("the IOMMU group of the GPUs is unknown", Why.NOT_HERE)
    translated = [g for g in gpus if g.iommu in TRANSLATED]
    if translated:
        has_peers = any("OK" in (p.read, p.write) for p in topo.pairs)
        yield Finding(
            f"the IOMMU translates the traffic of {len(translated)} GPU{'' if len(translated) == 1 else 's'} "
            f"(group type {translated[0].iommu})",
            (Evidence(f"topo.gpus[{translated[0].index}].iommu", translated[0].iommu or "", "identity"),),
            severity=None if has_peers else Severity.NOTE,
        )
