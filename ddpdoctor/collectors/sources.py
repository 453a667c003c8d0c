"""Which facts come from which part of the system, so that an empty /proc or /sys never looks like a healthy machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddpdoctor.facts.gaps import Gap
from ddpdoctor.system.machine import Root

__all__ = ["FIELDS", "with_gaps_of_sources"]

FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "/proc": {
        "environ": ("ancestors", "has_elastic_agent"),
        "host": (
            "memory_total_bytes",
            "memory_available_bytes",
            "swap_total_bytes",
            "shm_kind",
            "shm_leftovers",
            "extension_locks",
            "cgroup",
            "container",
            "numa_balancing",
            "user_threads",
            "logind.is_in_session",
        ),
        "net": (
            "interfaces",
            "interfaces.has_default_route",
            "reverse",
            "ephemeral_ports",
            "reserved_ports",
            "unprivileged_from",
            "listening",
            "backlog_max",
            "rdma.has_dma_buf",
        ),
        "gpu": ("kernel_driver", "xids"),
        "topo": ("fabric_manager", "cpu_vendor"),
    },
    "/sys": {
        "host": ("cpus_online", "numa_nodes", "governor", "huge_pages", "cgroup"),
        "net": ("interfaces.kind", "rdma"),
        "gpu": ("kernel_modules", "pci", "pci_devices", "other_accelerators", "devices.numa_node"),
        "topo": (
            "nics",
            "has_pci_bus",
            "fabric_manager",
            "gpus.pci_path",
            "gpus.iommu",
            "gpus.acs_bridges",
            "gpus.pci_numa_node",
        ),
    },
    "/etc": {"host": ("logind.user_lingers", "logind.removes_ipc")},
    "/dev": {
        "host": ("rdma_devices",),
        "gpu": ("device_nodes", "other_accelerators"),
        "topo": ("imex_channels",),
        "net": ("rdma.device_nodes",),
    },
}
"""By the folder from which they are read, with their section. Fields of records are `field.name`."""


def with_gaps_of_sources(root: Root, name: str, section: Any) -> Any:
    """The section `name` with a gap for each field whose source is missing or empty, unless it was found elsewhere."""
    gaps = list(section.gaps)
    for source, fields in FIELDS.items():
        names = fields.get(name, ())
        if not names or root.names(source):
            continue
        reason = f"{source} is empty" if root.exists(source) else f"{source} does not exist"
        unknown = [each for each in names if "." in each or not _is_known(getattr(section, each))]
        replaced = {f"{name}.{each}" for each in unknown}
        gaps = [gap for gap in gaps if gap.path not in replaced]
        gaps += [Gap(f"{name}.{each}", reason, source=source) for each in unknown]
    return dataclasses.replace(section, gaps=tuple(gaps)) if len(gaps) != len(section.gaps) or gaps else section


def _is_known(value: object) -> bool:
    """Whether a value was found: another one than the field's default. Records are defaults if all their fields are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_is_known(getattr(value, field_.name)) for field_ in dataclasses.fields(value))
    return value not in (None, (), "", False, 0, {})
