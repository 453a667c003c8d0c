"""TOPO029: /sys has no PCI topology."""

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
    """NCCL cannot read the PCI topology from /sys.

    ## Why it matters
    NCCL prints `Could not find real path of /sys/class/pci_bus` and then only an unhandled system error: on WSL, on gVisor, or in
    a container without /sys. Newer versions of NCCL guess the topology and continue.

    ## Fix
    Mount /sys in the container, use a newer NCCL, or set NCCL_TOPO_FILE to the topology file of the cloud provider.

    ## Example
    In the log:

        NCCL WARN Could not find real path of /sys/class/pci_bus/0000:1b/../../0000:1b:00.0

    On all nodes:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml torchrun --nproc-per-node 8 train.py

    ## Source
    NCCL graph/xml.cc; /sys/class/pci_bus is empty.
    """
    gpus = topo.all_gpus()
    if topo.has_pci_bus is None:
        not_here("/sys was not examined")
    if topo.has_pci_bus or environ.get("NCCL_TOPO_FILE"):
        return
    is_alone = (environ.world_size or 1) < 2
    yield Finding(
        f"/sys/class/pci_bus is empty although this machine has {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}",
        (Evidence("topo.has_pci_bus", "false", "true"),),
        severity=Severity.NOTE if is_alone else None,
    )
