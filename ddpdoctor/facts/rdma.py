"""RDMA adapters: their ports, which of them `NCCL_IB_HCA` selects, and what else NCCL needs to use them."""

from __future__ import annotations

import ipaddress
from dataclasses import field

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Gid", "Rdma", "RdmaDevice", "RdmaPort", "takes"]

ACTIVE = "ACTIVE"
EFA = "efa"
"""The driver of AWS's adapters, which NCCL can use only with a plugin."""


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table. `kind` is `IB/RoCE v1` or `RoCE v2`, as sysfs spells it."""

    index: int
    gid: str
    kind: str | None = None
    interface: str | None = None

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The IP address of a RoCE GID; None when it is malformed."""
        try:
            six = ipaddress.IPv6Address(self.gid)
        except ValueError:
            return None
        return six.ipv4_mapped or six

    @property
    def is_routable(self) -> bool:
        """A RoCE v2 entry with an address that leaves the local network."""
        address = self.address
        return self.kind == "RoCE v2" and address is not None and not address.is_link_local


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port. `state` is ACTIVE, INIT, ARMED or DOWN; `link_layer` is InfiniBand or Ethernet (RoCE).

    `errors` are counters since the driver was loaded, `growth` how much they grew within `Rdma.sample_seconds`. Empty
    entries of the GID table are left out.
    """

    number: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbit_per_s: float | None = None
    width: int | None = None
    link_layer: str | None = None
    gids: tuple[Gid, ...] = ()
    errors: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        return self.state == ACTIVE

    @property
    def is_roce(self) -> bool:
        return self.link_layer == "Ethernet"


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One adapter, by its name in /sys/class/infiniband. `kind` is its hca_type, `driver` the kernel module."""

    name: str
    kind: str | None = None
    driver: str | None = None
    firmware: str | None = None
    is_virtual_function: bool = False
    ports: tuple[RdmaPort, ...] = ()

    @property
    def needs_plugin(self) -> bool:
        """NCCL itself cannot use it: EFA."""
        return self.driver == EFA


@dataclass(frozen=True, slots=True)
class Rdma:
    """The adapters and what NCCL needs to use them.

    `device_nodes` are the names uverbs* in /dev/infiniband. `has_library`: the loader would find libibverbs.so.1.
    `peer_memory` is the module that gives adapters access to GPU memory, None without one; `has_dma_buf`: kernel and
    driver support it without a module. `plugin` is the libnccl-net.so that NCCL would load from LD_LIBRARY_PATH.
    """

    devices: tuple[RdmaDevice, ...] = ()
    device_nodes: tuple[str, ...] = ()
    has_library: bool | None = None
    peer_memory: str | None = None
    has_dma_buf: bool | None = None
    plugin: str | None = None
    has_plugin: bool | None = None
    """Whether NCCL would find the plugin that it looks for; None when this was not checked."""
    sample_seconds: float | None = None

    @property
    def ports(self) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
        """All ports of all adapters."""
        return tuple((device, port) for device in self.devices for port in device.ports)

    def used(self, spec: str | None) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
        """The active ports that NCCL uses with `NCCL_IB_HCA=spec`, in the kernel's order."""
        return tuple((d, p) for d, p in self.ports if p.is_active and takes(spec, d.name, p.number))


def takes(spec: str | None, name: str, port: int) -> bool:
    """Whether `NCCL_IB_HCA` selects a port: `[^][=]name[:port],…`, prefixes of names unless `=`; not set selects all.

    Source: NCCL net_ib, parseStringList and matchIfList.
    """
    if not spec:
        return True
    excludes = spec.startswith("^")
    rest = spec[excludes:]
    exact = rest.startswith("=")
    items = [item.split(":") for item in rest[exact:].split(",") if item]
    matched = not items or any(
        (name == item[0] if exact else name.startswith(item[0]))
        and (len(item) < 2 or not item[1].isdecimal() or int(item[1]) in (port, -1))
        for item in items
    )
    return matched is not excludes
