"""TOPO029: no PCI tree in /sys."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause(
    "TOPO029",
    "pci-topology-unreadable",
    Severity.ERROR,
    signatures=(r"Could not find real path of /sys/class/pci_bus",),
)
def pci_topology_unreadable(topo: Topo, environ: Environ) -> Iterator[Finding]:
    """NCCL cannot read the PCI tree here.

    ## Why it matters
    "Could not find real path of /sys/class/pci_bus" and then only an unhandled system error: so on WSL, gVisor, or in a
    container without /sys. Newer NCCL goes on with a guess.

    ## Fix
    Mount /sys, use a newer NCCL, or give the topology file of the cloud provider in NCCL_TOPO_FILE.

    ## Source
    NCCL graph/xml.cc; /sys/class/pci_bus is empty.
    """
    gpus = topo.all_gpus()
    if topo.has_pci_bus is None:
        not_here("/sys was not looked at")
    if topo.has_pci_bus or environ.get("NCCL_TOPO_FILE"):
        return
    is_alone = (environ.world_size or 1) < 2
    yield Finding(
        f"/sys/class/pci_bus lists nothing, and {len(gpus)} GPUs are here; expected their PCI buses",
        (Evidence("topo.has_pci_bus", "false", "true"),),
        severity=Severity.NOTE if is_alone else None,
    )
