"""The topology that NCCL writes with NCCL_TOPO_DUMP_FILE, or reads with NCCL_TOPO_FILE; and its graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.tool_output.record import Card, Line, Record, Said, bus_id_of, integer

__all__ = ["read_nccl_graph", "read_nccl_topology"]

_TAG = re.compile(r"<(/?)(\w{1,20})((?:\s+\w+=\"[^\"<>]{0,120}\")*)\s*(/?)>")
_ATTRIBUTE = re.compile(r"\b(\w+)=\"([^\"]*)\"")
SWITCH_CLASS = "0x068000"
DEEPEST = 32


def read_nccl_topology(lines: Sequence[Line]) -> Record:
    """The record of a topology: GPUs with their links and PCI slots, and network adapters."""
    record = Record("NCCL topology", is_whole=False)
    above: list[tuple[str, dict[str, str], int]] = []
    for number, line in lines:
        for closing, name, text, empty in _TAG.findall(line):
            if closing:
                while above and above.pop()[0] != name:
                    continue
                continue
            attributes = dict(_ATTRIBUTE.findall(text))
            if name == "gpu":
                _gpu(record, attributes, above, number)
            elif name == "nvlink" and record.cards and any(each[0] == "gpu" for each in above):
                _nvlink(record.cards[-1], attributes, number)
            elif name == "net":
                _net(record, attributes, number)
            if not empty and len(above) < DEEPEST:
                above.append((name, attributes, number))
    nets = len(record.nics)
    gpus = len(record.cards)
    record.about = f"{gpus} GPU{'' if gpus == 1 else 's'}, {nets} network device{'' if nets == 1 else 's'}"
    if not record.cards:
        record.refusal = "it lists no GPU, as a file for a virtual machine that NCCL completes"
    return record


def _gpu(record: Record, own: dict[str, str], above: Sequence[tuple[str, dict[str, str], int]], number: int) -> None:
    """A GPU, in the PCI slot that the `pci` element above it describes."""
    slot = next(((each, line) for name, each, line in reversed(above) if name == "pci"), ({}, number))
    card = Card(number, index=integer(own.get("dev", "")), bus_id=bus_id_of(slot[0].get("busid", "")))
    width = integer(slot[0].get("link_width", ""))
    if width:
        card.device["pcie_width"] = Said(width, slot[1])
    if card.index is not None or card.bus_id is not None:
        record.cards.append(card)


def _nvlink(card: Card, own: dict[str, str], number: int) -> None:
    count = integer(own.get("count", ""))
    if count is None or not 0 < count <= 64:
        return
    remote = "switch" if own.get("tclass") == SWITCH_CLASS else "gpu"
    first = len(card.links)
    for link in range(first, first + count):
        card.links[link] = {"is_active": Said(True, number), "remote": Said(remote, number)}
        target = bus_id_of(own.get("target", ""))
        if remote == "gpu" and target is not None:
            card.links[link]["remote_bus_id"] = Said(target, number)


def _net(record: Record, own: dict[str, str], number: int) -> None:
    name = own.get("name")
    if name:
        record.nics.setdefault(name, {"name": Said(name, number)})


def read_nccl_graph(lines: Sequence[Line]) -> Record:
    """A dump of NCCL_GRAPH_DUMP_FILE: what NCCL planned, which has no state of the machine."""
    return Record(
        "NCCL graph dump", about=f"{len(lines)} lines", refusal="the plan of NCCL's rings and trees; it is not judged"
    )
