"""How CUDA reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which GPUs a process sees, and with which ordinals.

The grammar is CUDA's: the first entry decides whether the list has numbers, `GPU-` or `MIG-` names; numbers are parsed
like strtoul does (`1gpu` is 1); the first bad entry ends the list; a repeated entry empties it. torch does the same
(torch/cuda/__init__.py: _parse_visible_devices, _transform_uuid_to_ordinals), and tests compare with it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.facts.device import Device
    from ddpdoctor.facts.gpu import Gpu

__all__ = ["Visibility", "cut", "joined", "listed", "visible"]

MOST = 1 << 20
"""More GPUs than any machine has."""

_HIDDEN = ("", "-1", "none", "void", "nodevfiles")
_JOINED = re.compile(r"\s*\d+(?:\s*[-;:]\s*|\s+)\d")
_NUMBER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Visibility:
    """The GPUs that CUDA shows with the variables of this node.

    `devices` are NVML indices by CUDA ordinal. `order_known` is False when different GPUs are numbered fastest first: then
    `count` is right, but only CUDA knows which GPU gets which ordinal. `stopped_at` is the entry that ended the list,
    `why` what is wrong with it, `dropped` the number of entries that CUDA does not use, including that one.
    """

    value: str | None
    count: int
    devices: tuple[int, ...]
    order_known: bool = True
    stopped_at: str | None = None
    why: str = ""
    dropped: int = 0

    def ordinal(self, index: int) -> int | None:
        """The CUDA ordinal of the GPU with this NVML index, None when it is hidden or the order is unknown."""
        return self.devices.index(index) if self.order_known and index in self.devices else None


@dataclass(frozen=True, slots=True)
class _Read:
    """Positions in CUDA's own numbering, and where parsing ended."""

    picked: tuple[int, ...]
    stopped_at: str | None = None
    why: str = ""
    dropped: int = 0


def visible(environ: Mapping[str, str], gpu: Gpu) -> Visibility:
    """Which of `gpu.devices` CUDA would show to a process with this environment, in CUDA's order."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    ordered, known = _numbering(environ.get("CUDA_DEVICE_ORDER"), gpu.devices)
    if value is None:
        return Visibility(None, len(ordered), tuple(d.index for d in ordered), known)
    has_names = value.startswith(("GPU-", "MIG-"))
    read = _names(value, ordered) if has_names else _numbers(value, len(ordered))
    indices = tuple(ordered[i].index for i in read.picked)
    known = known or has_names or not indices or len(indices) == len(ordered) == 1
    return Visibility(value, len(indices), indices, known, read.stopped_at, read.why, read.dropped)


def listed(value: str | None) -> int | None:
    """How many GPUs the value of CUDA_VISIBLE_DEVICES would show if all of them exist; None when it is not set."""
    if value is None:
        return None
    if not value.startswith(("GPU-", "MIG-")):
        return len(_numbers(value, MOST).picked)
    names = value.split(",")
    own = next((at for at, name in enumerate(names) if not name.startswith(value[:4])), len(names))
    if len(set(names[:own])) < own:
        return 0
    return min(own, 1) if value.startswith("MIG-") else own


def joined(value: str) -> str | None:
    """The first entry that was meant as several numbers (`0-7`, `0;1`, `0 1`): CUDA reads its first number and stops."""
    return next((entry for entry in value.split(",") if _JOINED.match(entry)), None)


def cut(value: str) -> tuple[str, str, int] | None:
    """The entry that ends or empties the list on any machine, what is wrong with it, and how many entries are dropped.

    None if nothing is wrong, and for entries that end a list or hide all GPUs on purpose.
    """
    if value.strip().lower() in _HIDDEN:
        return None
    if value.startswith(("GPU-", "MIG-")):
        names = value.split(",")
        at = next((i for i, n in enumerate(names) if n in names[:i] or not n.startswith(value[:4])), None)
        if at is None:
            return None
        why = "listed twice, which hides all GPUs" if names[at] in names[:at] else f"not a {value[:4]} name"
        read = _Read((), names[at], why, len(names) - at)
    else:
        read = _numbers(value, MOST)
    if read.stopped_at is None or (read.stopped_at.strip() in ("", "-1") and read.dropped == 1):
        return None
    return read.stopped_at, read.why, read.dropped


def _numbering(order: str | None, devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], bool]:
    """The devices in CUDA's order, and whether that is certain: identical GPUs keep the PCI order.

    CUDA does not see a GPU whose device node this process may not open.
    """
    devices = tuple(d for d in devices if d.error != "NO_PERMISSION")
    ordered = tuple(sorted(devices, key=lambda d: d.bus_id or "")) if all(d.bus_id for d in devices) else devices
    alike = len({(d.name, d.memory_total_bytes) for d in devices if d.error is None}) <= 1
    whole = not any(d.mig_mode for d in devices)
    return ordered, (alike or order == "PCI_BUS_ID") and whole


def _numbers(value: str, count: int) -> _Read:
    entries = value.split(",")
    numbers = list(itertools.takewhile(lambda number: number >= 0, map(_number, entries)))
    for at, number in enumerate(numbers):
        if number in numbers[:at]:
            return _Read((), entries[at], f"GPU {number} is listed twice, which hides all GPUs", len(entries))
    end = next((at for at, number in enumerate(numbers) if number >= count), len(numbers))
    if end == len(entries):
        return _Read(tuple(numbers))
    why = _what_is_wrong(entries[end])
    if end < len(numbers):
        why = f"this node has no GPU {numbers[end]}" if count else "this node has no GPU"
    return _Read(tuple(numbers[:end]), entries[end], why, len(entries) - end)


def _number(entry: str) -> int:
    """The number at the start of the entry, -1 without one."""
    match = _NUMBER.match(entry.strip())
    return int(match[0]) if match else -1


def _what_is_wrong(entry: str) -> str:
    if not entry.strip():
        return "an empty entry"
    if _number(entry) < 0 and _NUMBER.match(entry.strip()):
        return "a negative number"
    if entry.strip().startswith(("GPU-", "MIG-")):
        return "a name in a list of numbers"
    return "not a number"


def _names(value: str, ordered: tuple[Device, ...]) -> _Read:
    kind = value[:4]
    entries = value.split(",")
    known = _mig_names(ordered) if kind == "MIG-" else [(d.uuid or "", at) for at, d in enumerate(ordered)]
    names: list[str] = []
    for at, entry in enumerate(entries):
        if entry in names:
            return _Read((), entry, f"{entry} is listed twice, which hides all GPUs", len(entries))
        if not entry.startswith(kind):
            wrong = "an empty entry" if not entry else f"not a {kind} name"
            return _pick(names, known, entries, _Read((), entry, wrong, len(entries) - at))
        names.append(entry)
    return _pick(names, known, entries, _Read(()))


def _pick(wanted: list[str], known: list[tuple[str, int]], entries: list[str], stop: _Read) -> _Read:
    picked: list[int] = []
    for at, entry in enumerate(wanted):
        matches = [position for name, position in known if name.startswith(entry)]
        if len(matches) != 1:
            wrong = "this node has no such GPU" if not matches else f"{len(matches)} GPUs match this prefix"
            return _Read(tuple(picked), entry, wrong, len(entries) - at)
        if entry.startswith("MIG-"):
            return _one_mig(matches[0], entries, stop)
        if matches[0] in picked:
            return _Read((), entry, f"{entry} is listed twice, which hides all GPUs", len(entries))
        picked.append(matches[0])
    return _Read(tuple(picked), stop.stopped_at, stop.why, stop.dropped)


def _one_mig(position: int, entries: list[str], stop: _Read) -> _Read:
    """A process uses one MIG device: the first of the list."""
    if len(entries) == 1:
        return _Read((position,), stop.stopped_at, stop.why, stop.dropped)
    return _Read((position,), entries[1], "a process uses only its first MIG device", len(entries) - 1)


def _mig_names(ordered: tuple[Device, ...]) -> list[tuple[str, int]]:
    # Both spellings of each instance: MIG-<uuid>, and before driver 470 MIG-GPU-<uuid>/<gi>/<ci>.
    return [(mig.uuid, at) for at, device in enumerate(ordered) for mig in device.mig_instances] + [
        (f"MIG-{device.uuid}/{mig.gpu_instance}/{mig.compute_instance}", at)
        for at, device in enumerate(ordered)
        for mig in device.mig_instances
    ]
