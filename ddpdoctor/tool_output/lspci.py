"""`lspci`, `lspci -nn`, `lspci -vvv`: PCI devices, the width and speed of their links, and ACS in the bridges above the GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.tool_output.record import Card, Line, Record, Said, bus_id_of, decimal

__all__ = ["read_lspci"]

_DEVICE = pattern(
    r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([A-Z3][^:\n]{2,60}?)(?: \[[0-9a-f]{4}\])?: (.*)$"
)
_CAP = pattern(r"\s+LnkCap:.{0,200}?Speed ([\d.]{1,5})GT/s.{0,100}?Width x(\d{1,2})")
_STA = pattern(r"\s+LnkSta:\s*Speed ([\d.]{1,5})GT/s[^,]*,\s*Width x(\d{1,2})")
_ACS = pattern(r"\s+ACSCtl:\s*(.*)$")
_BUSES = pattern(r"\s+Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_GPU_CLASSES = ("3D controller", "VGA compatible controller")
_NIC_CLASSES = ("Infiniband controller", "Ethernet controller", "Network controller")
_RDMA = pattern(r"Mellanox|ConnectX|BlueField|Elastic Fabric Adapter|Broadcom.{0,200}(?:BCM57[56]|Thor)", re.I)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass
class _PciFunction:
    """One PCI function: its class and title, its link, and for a bridge the buses below it."""

    bus_id: str
    kind: str
    title: str
    line: int
    able: tuple[float, int] | None = None
    link: tuple[float, int] | None = None
    link_line: int = 0
    acs: str | None = None
    acs_line: int = 0
    below: tuple[int, int] | None = None
    problems: list[str] = field(default_factory=list)


def read_lspci(lines: Sequence[Line]) -> Record:
    """The record of a listing. Links and ACS are in `lspci -vvv` only, and ACS only if root ran it."""
    functions = _functions(lines)
    record = Record("lspci -vvv" if any(each.able for each in functions) else "lspci", is_whole=False)
    bridges = [each for each in functions if each.below is not None]
    gpus = [each for each in functions if each.kind in _GPU_CLASSES and "NVIDIA" in each.title]
    for gpu in gpus:
        record.cards.append(_card(gpu, bridges))
    for each in functions:
        if each.kind in _NIC_CLASSES and _RDMA.search(each.title) and "Virtual Function" not in each.title:
            _nic(record, each)
    record.say(
        "gpu.pci",
        [{"bus_id": g.bus_id, "vendor": "10de", "device": ""} for g in gpus] or None,
        gpus[0].line if gpus else 0,
    )
    record.about = f"{len(functions)} PCI function{'' if len(functions) == 1 else 's'}, {len(gpus)} NVIDIA"
    return record


def _functions(lines: Sequence[Line]) -> list[_PciFunction]:
    found: list[_PciFunction] = []
    for number, line in lines:
        begins = _DEVICE.match(line)
        if begins is not None:
            found.append(_PciFunction(bus_id_of(begins[1]) or begins[1], begins[2], begins[3], number))
        elif found:
            _detail(found[-1], line, number)
    return found


def _detail(function: _PciFunction, line: str, number: int) -> None:
    able, link, acs, buses = _CAP.match(line), _STA.match(line), _ACS.match(line), _BUSES.match(line)
    if able is not None:
        function.able = (decimal(able[1]) or 0.0, int(able[2]))
    elif link is not None:
        function.link, function.link_line = (decimal(link[1]) or 0.0, int(link[2])), number
    elif acs is not None:
        function.acs, function.acs_line = acs[1], number
    elif buses is not None:
        function.below = (int(buses[2], 16), int(buses[3], 16))


def _card(gpu: _PciFunction, bridges: Sequence[_PciFunction]) -> Card:
    """A GPU at its address: the number of lanes that it uses and has, and the bridges above it that redirect requests."""
    card = Card(gpu.line, bus_id=gpu.bus_id)
    if gpu.able is not None and gpu.link is not None:
        card.device["pcie_width"] = Said(gpu.link[1], gpu.link_line)
        card.device["pcie_width_max"] = Said(gpu.able[1], gpu.link_line)
    above = [each for each in bridges if _is_above(each, gpu.bus_id)]
    known = [each for each in above if each.acs is not None]
    if known:
        redirecting = [each for each in known if "ReqRedir+" in (each.acs or "") or "SrcValid+" in (each.acs or "")]
        at = (redirecting or known)[0].acs_line
        card.node["acs_bridges"] = Said([each.bus_id for each in redirecting], at)
    return card


def _is_above(bridge: _PciFunction, bus_id: str) -> bool:
    domain, bus, _ = bus_id.split(":")
    below = bridge.below
    return below is not None and bridge.bus_id.startswith(domain + ":") and below[0] <= int(bus, 16) <= below[1]


def _nic(record: Record, nic: _PciFunction) -> None:
    fields = record.nics.setdefault(nic.bus_id, {"name": Said(nic.bus_id, nic.line)})
    if nic.able is not None and nic.link is not None:
        fields["pcie_width"] = Said(nic.link[1], nic.link_line)
        fields["pcie_width_max"] = Said(nic.able[1], nic.link_line)
        if nic.link[0] in _GENERATIONS and nic.able[0] in _GENERATIONS:
            fields["pcie_generation"] = Said(_GENERATIONS[nic.link[0]], nic.link_line)
            fields["pcie_generation_max"] = Said(_GENERATIONS[nic.able[0]], nic.link_line)
