"""The record of one part of a file: what one tool says about one machine, each value with the line it is on."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, NamedTuple

from ddpdoctor.light_dataclass import dataclass

__all__ = ["NOT_IN_FILES", "Card", "Fields", "Hca", "Line", "Record", "Said", "bus_id_of", "decimal", "integer"]

NOT_IN_FILES = "NOT_IN_FILES"
"""Used in `Device.absent` in place of an NVML error code: no file shows the field."""

Line = tuple[int, str]
"""A line of a file and its number, which counts from 1."""
_BUS_ID = re.compile(r"(?i)(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$")
LONGEST_NUMBER = 18
"""More digits than any counter has: a longer number is malformed."""


class Said(NamedTuple):
    """A value as the facts hold it, and the number of the line that shows it."""

    value: Any
    line: int


Fields = dict[str, Said]
"""Values by the names of the fields in the facts."""


@dataclass
class Card:
    """What a tool says about one GPU. At least one of `index`, `uuid` and `bus_id` identifies it.

    `device` are fields of `facts.device.Device`, `node` of `facts.topo.GpuNode`, `links` of its NVLinks by index. `absent`
    are the NVML codes of device fields that the tool could not read.
    """

    line: int
    index: int | None = None
    uuid: str | None = None
    bus_id: str | None = None
    device: Fields = field(default_factory=dict)
    node: Fields = field(default_factory=dict)
    links: dict[int, Fields] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass
class Hca:
    """What a tool says about one RDMA adapter: fields of `facts.rdma.RdmaDevice`, and of its ports by number."""

    line: int
    fields: Fields = field(default_factory=dict)
    ports: dict[int, Fields] = field(default_factory=dict)


@dataclass
class Record:
    """What one part of a file says.

    `tool` is how messages name the tool, `about` what it shows in a few words. `values` are single values by their path in
    the facts (`gpu.driver_version`). `is_whole`: the tool lists all GPUs of the machine. `refusal` is set for the output of
    a tool that is recognised and not judged.
    """

    tool: str
    about: str = ""
    host: str | None = None
    values: Fields = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    is_whole: bool = True
    pairs: dict[tuple[int, int], Fields] = field(default_factory=dict)
    hcas: dict[str, Hca] = field(default_factory=dict)
    nics: dict[str, Fields] = field(default_factory=dict)
    interfaces: dict[str, Fields] = field(default_factory=dict)
    variables: Fields = field(default_factory=dict)
    refusal: str | None = None

    @property
    def lists_in_order(self) -> bool:
        """Whether the position of a GPU is its index, or its minor number stands beside it: NVML orders GPUs by address."""
        return self.tool.startswith("lspci") or any("minor" in card.device for card in self.cards)

    def say(self, path: str, value: Any, line: int) -> None:
        """Record a value; the first one of a path stays. None is not a value."""
        if value is not None:
            self.values.setdefault(path, Said(value, line))

    @property
    def is_empty(self) -> bool:
        """Nothing was read: a header without content, or output that was cut off."""
        listed = (self.values, self.cards, self.pairs, self.hcas, self.nics, self.interfaces, self.variables)
        return not any(listed)


def bus_id_of(text: str) -> str | None:
    """A PCI address in the form that the facts use, `0000:3b:00.0`; None if the text is not one."""
    matched = _BUS_ID.match(text.strip())
    if matched is None:
        return None
    domain, bus, device, function = matched.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def decimal(text: str) -> float | None:
    """The number that a text is (`26.562`); None for anything else."""
    return float(text) if re.fullmatch(r"\d{1,12}(?:\.\d{0,9})?", text.strip()) else None


def integer(text: str) -> int | None:
    """The number that a text begins with (`16x`, `85 C`, `-2 C`, `0x3`); None for anything else, such as `N/A`."""
    matched = re.match(r"\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))(?![\w.]*[A-Za-z]*\.\d)", text)
    if matched is None or len(matched[1]) > LONGEST_NUMBER:
        return None
    return int(matched[1], 0) if "x" in matched[1].lower() else int(matched[1])
