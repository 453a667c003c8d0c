"""`net`: interfaces, routes, names and ports of one node."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Address", "Interface", "Net"]


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface; `family` is `ipv4` or `ipv6`."""

    ip: str
    prefix_length: int
    family: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface, in the kernel's order (`getifaddrs`)."""

    name: str
    is_up: bool = True
    is_running: bool = True
    kind: str = "physical"
    mtu: int | None = None
    speed_mbit_per_s: int | None = None
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class Net(Section):
    """What this node's network looks like from the inside."""

    hostname: str = ""
    interfaces: tuple[Interface, ...] = ()
    gaps: tuple[Gap, ...] = ()
