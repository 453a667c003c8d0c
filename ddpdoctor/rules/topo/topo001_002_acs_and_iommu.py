"""TOPO001, TOPO002: bridges and the IOMMU, which send traffic between GPUs a longer way or nowhere."""

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
        not_here("in a virtual machine the host decides")


def _has_peers(topo: Topo) -> bool:
    """Some pair of GPUs has peer access that goes over PCIe."""
    return any(p.read == "OK" for p in topo.unlinked_pairs())


@cause("TOPO001", "acs-redirects-p2p", Severity.WARNING)
def acs_redirects_p2p(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """PCIe access control (ACS) redirects traffic between the GPUs to the host.

    ## Why it matters
    init passes, the GPUs show 100 % utilisation and nothing moves; copies between GPUs are slow, hang or bring wrong values, and
    the time-out comes 10 to 30 minutes later.

    ## Fix
    Switch ACS off on the bridges above the GPUs, in the BIOS or with setpci. Until then NCCL_P2P_DISABLE=1 avoids the way.

    ## Source
    NCCL's troubleshooting page (lspci -vvv: ACSCtl SrcValid+); the ACS control register of each bridge, read from sysfs.
    """
    _bare_metal(gpu)
    gpus = topo.all_gpus()
    if len(gpus) < 2 and not topo.nics:
        not_here("one GPU has no peer")
    known = [g for g in gpus if g.acs_bridges is not None]
    if not known:
        why = Why.NEEDS_ROOT if any(g.pci_path for g in gpus) else Why.NOT_HERE
        raise CannotLook("the bridges' configuration: needs root", why)
    bridges = sorted({name for g in known for name in g.acs_bridges or ()})
    if bridges and (topo.nics or _has_peers(topo)):
        yield Finding(
            f"ACS is on in {len(bridges)} bridges above the GPUs ({', '.join(bridges[:4])}"
            f"{', …' if len(bridges) > 4 else ''}); expected off, for it redirects peer traffic",
            (Evidence("topo.gpus", f"ACS on {bridges[0]}", "SrcValid-, ReqRedir-"),),
            fix_command=f"setpci -v -s {bridges[0]} ECAP_ACS+6.w=0000",
        )


@cause("TOPO002", "iommu-translates-p2p", Severity.WARNING)
def iommu_translates_p2p(topo: Topo, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The IOMMU translates what the GPUs send: it is on and not in pass-through mode.

    ## Why it matters
    Peer copies are slow, hang or bring wrong values on bare metal, as with ACS.

    ## Fix
    Put iommu=pt on the kernel's command line, or switch the IOMMU off.

    ## Source
    /sys/bus/pci/devices/*/iommu_group/type: identity is pass-through.
    """
    _bare_metal(gpu)
    gpus = topo.all_gpus()
    if len(gpus) < 2:
        not_here("one GPU has no peer")
    if all(g.iommu is None for g in gpus):
        raise CannotLook("the IOMMU group of the GPUs is not known", Why.NOT_HERE)
    translated = [g for g in gpus if g.iommu in TRANSLATED]
    if translated:
        has_peers = any("OK" in (p.read, p.write) for p in topo.pairs)
        yield Finding(
            f"the IOMMU translates the traffic of {len(translated)} GPUs (group type {translated[0].iommu}); "
            "expected identity (iommu=pt)",
            (Evidence(f"topo.gpus[{translated[0].index}].iommu", translated[0].iommu or "", "identity"),),
            severity=None if has_peers else Severity.NOTE,
        )
