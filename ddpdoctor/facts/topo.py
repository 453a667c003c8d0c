"""`topo`: how the GPUs of one node are connected: NVLink, PCIe, NUMA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.gaps import CannotLook, Gap, Section, Why
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Fabric", "FabricLog", "FabricManager", "GpuNode", "Link", "LinkErrors", "Nic", "Pair", "Topo", "pci_label"]

_LEVELS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P_WORDS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
"""The values of nvmlDeviceGetP2PStatus by number: OK, chipset, GPU, topology, disabled by registry, not supported, unknown."""


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink of a GPU. `version` is NVML's enum (A100 4, H100 6), not the generation; `remote` is gpu, switch or unknown."""

    index: int
    is_active: bool
    version: int | None = None
    speed_mb_per_s: int | None = None
    remote: str | None = None
    remote_bus_id: str | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None
    crc_errors: int | None = None
    receive_errors: int | None = None
    """From NVLink 5 on, instead of replays."""
    effective_errors: int | None = None
    effective_ber: int | None = None
    symbol_errors: int | None = None
    symbol_ber: int | None = None
    """Fields 219 to 222, from NVLink 5 on; a rate has the mantissa in bits 8 to 11 and the exponent in bits 0 to 7."""
    replay_growth: int | None = None
    recovery_growth: int | None = None
    crc_growth: int | None = None
    receive_growth: int | None = None
    """How much the counters grew within `Topo.sample_seconds`."""


@dataclass(frozen=True, slots=True)
class LinkErrors:
    """The counters of one NVLink since they began, as `nvidia-smi nvlink -e` prints them; it does not print the link's state."""

    index: int
    replay: int | None = None
    recovery: int | None = None
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The fabric registration (Hopper and later): `state` 1 not started, 2 in progress, 3 completed.

    `status` is an NVML code, valid in state 3 only; `health_mask` has two bits per condition: 1 true, 2 false.
    """

    state: int
    status: int = 0
    clique: int | None = None
    cluster_uuid: str | None = None
    health_mask: int | None = None
    health_summary: int | None = None

    @property
    def is_up(self) -> bool:
        """Registered without an error, or a GPU that does not register."""
        return self.state == 0 or (self.state == 3 and not self.status)


@dataclass(frozen=True, slots=True)
class GpuNode:
    """One GPU in the topology: `index` is NVML's; affinities are ranges as in `nvidia-smi topo -m`."""

    index: int
    name: str | None = None
    bus_id: str | None = None
    error: str | None = None
    """The NVML error code of a GPU that cannot be queried: `GPU_IS_LOST`."""
    cpu_affinity: str | None = None
    numa_affinity: str | None = None
    gpu_numa_id: int | None = None
    pci_path: str | None = None
    """Its path in sysfs: `/sys/devices/pci0000:17/0000:17:01.0/…`."""
    pci_numa_node: int | None = None
    iommu: str | None = None
    """The kind of the slot's IOMMU group: `identity`, `DMA`, `DMA-FQ`, …; "" without an IOMMU; None when not reported."""
    acs_bridges: tuple[str, ...] | None = None
    """The bridges above the GPU that redirect requests to the host (ACS); None where reading them needs root."""
    link_count: int | None = None
    """Field 91: the number of links of the board; None when not reported."""
    switch_links: int | None = None
    """Field 147: the number of links to an NVSwitch."""
    links: tuple[Link, ...] = ()
    link_errors: tuple[LinkErrors, ...] = ()
    """From a file."""
    fabric: Fabric | None = None

    @property
    def active_links(self) -> int:
        return sum(link.is_active for link in self.links)

    @property
    def untold_links(self) -> int:
        """Links whose state NVML did not report."""
        return max(0, (self.link_count or 0) - len(self.links))

    @property
    def is_switched(self) -> bool:
        """Whether its links end at NVSwitches, from field 147 or the remote end of each link."""
        return bool(self.switch_links) or any(link.remote == "switch" for link in self.links)

    @property
    def links_to_switch(self) -> int:
        """Active links that end at an NVSwitch. A remote end that is not visible here counts as one."""
        return len([link for link in self.links if link.is_active and link.remote != "gpu"])


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs, `a` < `b`: NVML's common ancestor level, and the P2P status words in both directions."""

    a: int
    b: int
    level: int | None = None
    read: str | None = None
    write: str | None = None
    nvlink: str | None = None
    read_back: str | None = None
    write_back: str | None = None
    nvlink_back: str | None = None
    atomics: str | None = None
    pci: str | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA device by its name, or by its PCI address, and its path in sysfs. The link is that of `lspci -vvv`."""

    name: str
    pci_path: str | None = None
    numa_node: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True, slots=True)
class FabricManager:
    """The service that sets up the NVSwitches. `is_running`: a process of that name is visible; `version` is the program's."""

    is_running: bool
    version: str | None = None


@dataclass(frozen=True, slots=True)
class FabricLog:
    """The log of the fabric manager, from a file: its errors since the last start, as it writes them."""

    version: str | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topo(Section):
    """The GPUs and NICs of one node and the paths between them.

    `fabric_manager` is None without an NVSwitch. `imex_channels` are the names in /dev/nvidia-caps-imex-channels.
    `has_pci_bus`: /sys/class/pci_bus is not empty.
    """

    gpus: tuple[GpuNode, ...] = ()
    pairs: tuple[Pair, ...] = ()
    nics: tuple[Nic, ...] = ()
    fabric_manager: FabricManager | None = None
    fabric_log: FabricLog | None = None
    imex_channels: tuple[str, ...] = ()
    has_pci_bus: bool | None = None
    cpu_vendor: str | None = None
    """`GenuineIntel` or `AuthenticAMD` (/proc/cpuinfo); None on other architectures."""
    sample_seconds: float | None = None
    printed: tuple[tuple[str, ...], ...] = ()
    """The cells of a matrix that nvidia-smi printed, from a file: GPUs first, then NICs."""
    gaps: tuple[Gap, ...] = ()

    def all_gpus(self) -> tuple[GpuNode, ...]:
        """The GPUs that respond to NVML.

        Raises:
            CannotLook: there is none.
        """
        self.need(self.gpus or None, "gpus")
        responding = tuple(g for g in self.gpus if g.error is None)
        if not responding:
            raise CannotLook("no GPU responds", Why.UNANSWERED)
        return responding

    def matrix(self, *, is_usable: bool = False) -> tuple[tuple[str, ...], ...]:
        """The cells of `nvidia-smi topo -m`: GPUs first, then NICs.

        `is_usable`: NVLinks over which peer access is refused do not count, as while the fabric is not up; the path is then PCIe.
        """
        devices: tuple[GpuNode | Nic, ...] = (*self.gpus, *self.nics)
        if len(self.printed) == len(devices):
            return self.printed
        return tuple(tuple(self._cell(a, b, is_usable=is_usable) for b in devices) for a in devices)

    def nvlinks(self, a: GpuNode, b: GpuNode) -> int:
        """Active NVLinks of `a` to `b`: direct ones, or its own to the switches, as nvidia-smi counts in the row of `a`."""
        direct = sum(link.is_active and link.remote_bus_id == b.bus_id for link in a.links if b.bus_id)
        return direct or (a.links_to_switch if b.links_to_switch else 0)

    def linked_pairs(self) -> Iterator[tuple[Pair, int]]:
        """The pairs that NVLink connects, with the number of links."""
        bus_ids = {g.index: g.bus_id for g in self.gpus}
        switched = {g.index: g.links_to_switch for g in self.gpus}
        direct = Counter((g.index, link.remote_bus_id) for g in self.gpus for link in g.links if link.is_active)
        for pair in self.pairs:
            wired = direct[pair.a, bus_ids[pair.b]] if bus_ids[pair.b] else 0
            links = wired or min(switched[pair.a], switched[pair.b])
            if links:
                yield pair, links

    def unlinked_pairs(self) -> tuple[Pair, ...]:
        """The pairs that no NVLink connects."""
        linked = {(pair.a, pair.b) for pair, _ in self.linked_pairs()}
        return tuple(p for p in self.pairs if (p.a, p.b) not in linked)

    def _cell(self, a: GpuNode | Nic, b: GpuNode | Nic, *, is_usable: bool) -> str:
        if a is b:
            return "X"
        if isinstance(a, GpuNode) and isinstance(b, GpuNode):
            return self._gpu_cell(a, b, is_usable=is_usable)
        numa = [p.pci_numa_node if isinstance(p, GpuNode) else p.numa_node for p in (a, b)]
        return pci_label(a.pci_path, b.pci_path, numa[0], numa[1])

    def _gpu_cell(self, a: GpuNode, b: GpuNode, *, is_usable: bool) -> str:
        if a.error or b.error:
            return "ERR!"
        pair = next((p for p in self.pairs if {p.a, p.b} == {a.index, b.index}), None)
        links = self.nvlinks(a, b)
        is_refused = pair is not None and pair.nvlink not in ("OK", None)
        if links and not (is_usable and is_refused):  # nvidia-smi does not ask for peer access
            return f"NV{links}"
        if pair is not None and pair.level in _LEVELS:
            return _LEVELS[pair.level]
        return pci_label(a.pci_path, b.pci_path, a.pci_numa_node, b.pci_numa_node)


def pci_label(a: str | None, b: str | None, numa_a: int | None, numa_b: int | None) -> str:
    """The label of the path between two PCI devices, from their resolved sysfs paths; `N/A` when one is unknown."""
    if a is None or b is None:
        return "N/A"
    ours, theirs = _bridges(a), _bridges(b)
    if ours[:1] != theirs[:1]:
        return "NODE" if numa_a is not None and numa_a == numa_b else "SYS"
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    if shared == 1:
        return "PHB"
    # A switch is two bridges, upstream and downstream: two devices below one switch differ in their last bridge only.
    return "PIX" if max(len(ours), len(theirs)) - shared <= 1 else "PXB"


def _bridges(path: str) -> list[str]:
    """`pci0000:17` and the bridges down to the device, without the device."""
    parts = path.split("/")
    start = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return parts[start:-1]
