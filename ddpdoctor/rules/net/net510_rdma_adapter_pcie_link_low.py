"""NET510: the PCIe link of an RDMA adapter is narrower or slower than the adapter supports."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.topo import Nic, Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("NET510", "rdma-adapter-pcie-link-low", Severity.WARNING)
def rdma_adapter_pcie_link_low(topo: Topo) -> Iterator[Finding]:
    """A network adapter's PCIe link has fewer lanes or a lower speed than expected.

    ## Why it matters
    The adapter cannot reach the rate of its network port: `ib_write_bw` and NCCL between nodes reach half of it or
    less, on this node only. Unlike GPUs, network adapters keep their full link when they are idle.

    ## Fix
    Reboot the node; if the link stays slow, reseat the adapter or its riser, or move it to another slot.

    ## Example

        LnkSta: Speed 16GT/s (downgraded), Width x8 (downgraded)

        lspci -vvv -s 5e:00.0 | grep -E 'LnkCap|LnkSta'
    """
    known = [(i, nic) for i, nic in enumerate(topo.nics) if nic.pcie_width is not None and nic.pcie_width_max]
    if not known:
        not_here("no PCIe link of an adapter is known")
    fastest = max(nic.pcie_generation or 0 for _, nic in known)
    for index, nic in known:
        if (nic.pcie_width or 0) < (nic.pcie_width_max or 0):
            yield _low(
                index,
                nic,
                "pcie_width",
                f"{nic.pcie_width} of {nic.pcie_width_max} PCIe lanes",
                str(nic.pcie_width_max),
            )
        elif nic.pcie_generation and nic.pcie_generation < min(fastest, nic.pcie_generation_max or fastest):
            text = f"PCIe generation {nic.pcie_generation}; it supports {nic.pcie_generation_max}"
            yield _low(index, nic, "pcie_generation", text, str(nic.pcie_generation_max))


def _low(index: int, nic: Nic, field: str, text: str, expected: str) -> Finding:
    return Finding(
        f"network adapter {nic.name} uses {text}",
        (Evidence(f"topo.nics[{index}].{field}", str(getattr(nic, field)), expected),),
        fix_command=f"lspci -vvv -s {nic.name} | grep -E 'LnkCap|LnkSta'",
    )
