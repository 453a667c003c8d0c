"""The path from a PCI device to the CPU in sysfs: bridges that redirect (ACS), and the IOMMU."""

from __future__ import annotations

from ddpdoctor.system.machine import Machine

__all__ = ["acs_bridges", "iommu"]

HEADER_BYTES = 64
"""The part of the configuration space that users other than root can read."""
EXTENDED = 0x100
ACS = 0x000D
SOURCE_VALIDATION, REQUEST_REDIRECT = 0x01, 0x04


def iommu(machine: Machine, place: str) -> str | None:
    """The kind of a device's IOMMU group, "" when it is in none, None when the device or the kind is unknown."""
    if not machine.root.exists(place):
        return None
    group = f"{place}/iommu_group"
    return machine.root.line(f"{group}/type") if machine.root.exists(group) else ""


def acs_bridges(machine: Machine, path: str) -> tuple[str, ...] | None:
    """The bridges above the device at `path` (resolved) that check and redirect requests; None if reading them needs root."""
    redirecting = []
    bridge = path.rpartition("/")[0]
    while "/pci" in bridge and not bridge.rpartition("/")[2].startswith("pci"):
        space = _configuration(machine, bridge)
        if space is None:
            return None
        if _control(space) & (SOURCE_VALIDATION | REQUEST_REDIRECT):
            redirecting.append(bridge.rpartition("/")[2])
        bridge = bridge.rpartition("/")[0]
    return tuple(redirecting)


def _configuration(machine: Machine, bridge: str) -> bytes | None:
    try:
        with open(machine.root.at(f"{bridge}/config"), "rb") as file:
            space = file.read(4096)
    except OSError:
        return None
    return None if len(space) <= HEADER_BYTES else space


def _control(space: bytes) -> int:
    """The ACS control register, 0 for a bridge without ACS. Capabilities are a list of (id, next) from 0x100 on."""
    at, visited = EXTENDED, set[int]()
    while at >= EXTENDED and at + 8 <= len(space) and at not in visited:
        visited.add(at)
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at = header >> 20
    return 0
