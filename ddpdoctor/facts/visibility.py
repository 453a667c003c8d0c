"""CUDA's own reading of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which GPUs a process sees, and as which ordinals.

The grammar is CUDA's: the first entry decides whether the list holds numbers, `GPU-` or `MIG-` names; numbers are read
like strtoul reads them (`1gpu` is 1); the first bad entry ends the list; a repeated entry empties it. torch reads it
the same way (torch/cuda/__init__.py: _parse_visible_devices, _transform_uuid_to_ordinals), and is what tests compare with.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.facts.device import Device
    from ddpdoctor.facts.gpu import Gpu

__all__ = ["Visibility", "cut", "joined", "listed", "visible"]

MOST = 1 << 20
"""More GPUs than a machine has."""

_HIDDEN = ("", "-1", "none", "void", "nodevfiles")
_JOINED = re.compile(r"\s*\d+\s*[-;:\s]\s*\d")
_NUMBER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Visibility:
    """What CUDA makes of the variables on this node.

    `devices` are NVML indices by CUDA ordinal. `order_known` is False when unlike GPUs are numbered fastest first: then
    `count` is right, but which GPU gets which ordinal is CUDA's own secret. `stopped_at` is the entry that ended the list,
    `why` says what is wrong with it, `dropped` counts the entries that CUDA does not use (that one among them).
    """

    value: str | None
    count: int
    devices: tuple[int, ...]
    order_known: bool = True
    stopped_at: str | None = None
    why: str = ""
    dropped: int = 0

    def ordinal(self, index: int) -> int | None:
        """The CUDA ordinal of the GPU with this NVML index, None when it is hidden or the order is not known."""
        return self.devices.index(index) if self.order_known and index in self.devices else None


@dataclass(frozen=True, slots=True)
class _Read:
    """Positions in CUDA's own numbering, and where the reading ended."""

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
    """How many GPUs the value of CUDA_VISIBLE_DEVICES would show if all that it lists exist; None when it is not set."""
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
    """The first entry that was meant as several numbers (`0-7`, `0;1`, `0 1`): CUDA reads the first of them and stops."""
    return next((entry for entry in value.split(",") if _JOINED.match(entry)), None)


def cut(value: str) -> tuple[str, str, int] | None:
    """The entry that ends or empties the list whatever GPUs there are, what is wrong with it, and how many entries it costs.

    None where nothing is wrong, and for the marks with which people end a list or hide all GPUs on purpose.
    """
    if value.strip().lower() in _HIDDEN:
        return None
    if value.startswith(("GPU-", "MIG-")):
        names = value.split(",")
        at = next((i for i, n in enumerate(names) if n in names[:i] or not n.startswith(value[:4])), None)
        if at is None:
            return None
        why = "listed twice, which hides all" if names[at] in names[:at] else f"not a {value[:4]} name"
        read = _Read((), names[at], why, len(names) - at)
    else:
        read = _numbers(value, MOST)
    if read.stopped_at is None or (read.stopped_at.strip() in ("", "-1") and read.dropped == 1):
        return None
    return read.stopped_at, read.why, read.dropped


def _numbering(order: str | None, devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], bool]:
    """The devices as CUDA numbers them, and whether that is certain: like GPUs keep the PCI order.

    A GPU whose device node the container or the job may not open is none for CUDA.
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
            return _Read((), entries[at], f"GPU {number} is listed twice, which hides all", len(entries))
    end = next((at for at, number in enumerate(numbers) if number >= count), len(numbers))
    if end == len(entries):
        return _Read(tuple(numbers))
    why = _what_is_wrong(entries[end])
    if end < len(numbers):
        why = f"there is no GPU {numbers[end]} here" if count else "there is no GPU here"
    return _Read(tuple(numbers[:end]), entries[end], why, len(entries) - end)


def _number(entry: str) -> int:
    """The number that the entry begins with, -1 without one."""
    found = _NUMBER.match(entry.strip())
    return int(found[0]) if found else -1


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
    seen: list[str] = []
    for at, entry in enumerate(entries):
        if entry in seen:
            return _Read((), entry, f"{entry} is listed twice, which hides all", len(entries))
        if not entry.startswith(kind):
            wrong = "an empty entry" if not entry else f"not a {kind} name"
            return _found(seen, known, entries, _Read((), entry, wrong, len(entries) - at))
        seen.append(entry)
    return _found(seen, known, entries, _Read(()))


def _found(wanted: list[str], known: list[tuple[str, int]], entries: list[str], stop: _Read) -> _Read:
    picked: list[int] = []
    for at, entry in enumerate(wanted):
        matches = [position for name, position in known if name.startswith(entry)]
        if len(matches) != 1:
            wrong = "there is no such GPU here" if not matches else f"{len(matches)} GPUs begin with that"
            return _Read(tuple(picked), entry, wrong, len(entries) - at)
        if entry.startswith("MIG-"):
            return _one_mig(matches[0], entries, stop)
        if matches[0] in picked:
            return _Read((), entry, f"{entry} is listed twice, which hides all", len(entries))
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
