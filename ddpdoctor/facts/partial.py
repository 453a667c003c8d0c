"""Facts of which only a part is known, such as those that were read from the output of nvidia-smi.

A rule that reads a field which no file shows must neither fire nor pass. `guarded` wraps a section: a field whose default
would count as a fact ("", (), False) raises CannotLook; None passes through, because in facts None is "unknown". Both are
remembered in `Reads`, so that the rule counts as skipped unless it found something.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from dataclasses import field
from typing import Any, TypeVar, cast

from ddpdoctor.facts.gaps import CannotLook, Why
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Reads", "guarded"]

T = TypeVar("T")
KEYED_BY_INDEX = ("Device", "GpuNode", "Link", "LinkErrors")
"""Types whose evidence paths use the field `index`, not the position in the tuple."""
MEANS_NONE = frozenset({("Rdma", "plugin"), ("Rdma", "peer_memory"), ("Rdma", "has_plugin"), ("Gpu", "nvml_error")})
"""Fields in which None is a fact: no plugin, no module, no error."""
SOFTENERS = frozenset(
    {("SchedulerNode", name) for name in ("state", "reason", "is_unschedulable")}
    | {("Gpu", name) for name in ("kernel_modules", "kernel_driver", "pci", "pci_devices")}
    | {("Versions", "libcuda_version")}
    | {("GpuNode", name) for name in ("name", "bus_id", "error", "fabric", "link_count", "switch_links")}
    | {("Pair", name) for name in ("write", "write_back", "read_back", "nvlink", "nvlink_back")}
    | {("RdmaDevice", "kind"), ("RdmaPort", "physical_state"), ("RdmaPort", "width"), ("RdmaPort", "link_layer")}
    | {("Device", name) for name in ("between", "later", "virtualization_mode", "absent", "performance_state")}
    | {("Topo", "printed")}
    | {("Probe", "baseline"), ("Gpu", "xids")}
    | {("Device", name) for name in ("mig_mode", "inforom", "name", "uuid", "bus_id", "gpu_numa_id")}
    | {("Device", name) for name in ("clock_event_reasons", "utilization_percent", "mig_pending")}
)
"""Fields that only soften or refine what a rule finds: it has looked without them as well."""


@dataclass
class Reads:
    """Which fields a rule has read: `known` have a value in a file, `unknown` have none. `gaps` are neither."""

    known: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def clear(self) -> None:
        self.known.clear()
        self.unknown.clear()


def guarded(value: T, path: str, told: Collection[str], reads: Reads) -> T:
    """`value`, a record of facts at `path`, with guards in it and in every record below. `told` are the known paths."""
    return cast(T, _guard(value, path, told, reads))


def _guard(value: Any, path: str, told: Collection[str], reads: Reads) -> Any:
    if isinstance(value, tuple):
        return tuple(_guard(item, f"{path}[{_key(item, i)}]", told, reads) for i, item in enumerate(value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kind = type(value)
    copy: Any = object.__new__(_guard_of(kind))
    object.__setattr__(copy, "_guards", ({}, path, reads))
    for each in dataclasses.fields(value):
        inner = _guard(getattr(value, each.name), f"{path}.{each.name}", told, reads)
        object.__setattr__(copy, each.name, inner)
    unknown = {f.name for f in dataclasses.fields(value) if f"{path}.{f.name}" not in told and f.name != "gaps"}
    object.__setattr__(copy, "_guards", ({n: _is_fact(kind.__name__, n, value) for n in unknown}, path, reads))
    return copy


def _key(item: Any, position: int) -> object:
    return item.index if type(item).__name__ in KEYED_BY_INDEX else position


def _is_fact(kind: str, name: str, value: object) -> bool:
    """Whether the field's default would count as a fact if nobody had told it."""
    if (kind, name) in SOFTENERS:
        return False
    return getattr(value, name) is not None or (kind, name) in MEANS_NONE


@functools.cache
def _guard_of(kind: type) -> type:
    """The subclass of a type of facts that checks each field that is read."""
    return type(
        kind.__name__, (kind,), {"__slots__": ("_guards",), "__getattribute__": _read, "__module__": kind.__module__}
    )


def _read(record: Any, name: str) -> Any:
    value = object.__getattribute__(record, name)
    if name.startswith("_"):
        return value
    unknown, path, reads = object.__getattribute__(record, "_guards")
    if name in unknown:
        if not _softens(record, name):
            reads.unknown.add(f"{path}.{name}")
        if unknown[name]:
            raise CannotLook(f"no file shows {path}.{name}", Why.NOT_HERE)
    elif not callable(value) and name != "gaps":
        reads.known.add(f"{path}.{name}")
    return value


def _softens(record: Any, name: str) -> bool:
    return (type(record).__name__, name) in SOFTENERS
