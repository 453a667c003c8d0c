"""`nvidia-smi --query-gpu=… --format=csv`: one line per GPU below a line of names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.tool_output.record import Card, Line, Record, Said, bus_id_of, integer
from ddpdoctor.tool_output.smi_fields import EVENT_BITS, FIELDS
from ddpdoctor.tool_output.smi_values import Reader, absence_of, count, flag, mebibytes, milliwatts, put, text_of

__all__ = ["read_csv"]

_OF_QUERY = {
    "name": "product name",
    "gpu_name": "product name",
    "serial": "serial number",
    "gpu_serial": "serial number",
    "persistence_mode": "persistence mode",
    "pstate": "performance state",
    "memory.total": "fb memory usage/total",
    "memory.used": "fb memory usage/used",
    "memory.reserved": "fb memory usage/reserved",
    "utilization.gpu": "utilization/gpu",
    "temperature.gpu": "temperature/gpu current temp",
    "temperature.gpu.tlimit": "temperature/gpu t.limit temp",
    "temperature.memory": "temperature/memory current temp",
    "power.draw": "power readings/power draw",
    "power.limit": "power readings/power limit",
    "enforced.power.limit": "power readings/power limit",
    "power.default_limit": "power readings/default power limit",
    "power.min_limit": "power readings/min power limit",
    "power.max_limit": "power readings/max power limit",
    "clocks.sm": "clocks/sm",
    "clocks.current.sm": "clocks/sm",
    "clocks.max.sm": "max clocks/sm",
    "clocks.mem": "clocks/memory",
    "clocks.current.memory": "clocks/memory",
    "clocks.max.mem": "max clocks/memory",
    "clocks.max.memory": "max clocks/memory",
    "clocks.applications.graphics": "applications clocks/graphics",
    "clocks.applications.gr": "applications clocks/graphics",
    "clocks.default_applications.graphics": "default applications clocks/graphics",
    "clocks.default_applications.gr": "default applications clocks/graphics",
    "compute_mode": "compute mode",
    "mig.mode.current": "mig mode/current",
    "mig.mode.pending": "mig mode/pending",
    "ecc.mode.current": "ecc mode/current",
    "ecc.mode.pending": "ecc mode/pending",
    "retired_pages.sbe": "retired pages/single bit ecc",
    "retired_pages.single_bit_ecc.count": "retired pages/single bit ecc",
    "retired_pages.dbe": "retired pages/double bit ecc",
    "retired_pages.double_bit.count": "retired pages/double bit ecc",
    "retired_pages.pending": "retired pages/pending page blacklist",
    "pcie.link.gen.current": "pci/gpu link info/pcie generation/current",
    "pcie.link.gen.gpucurrent": "pci/gpu link info/pcie generation/current",
    "pcie.link.gen.max": "pci/gpu link info/pcie generation/max",
    "pcie.link.gen.gpumax": "pci/gpu link info/pcie generation/device max",
    "pcie.link.width.current": "pci/gpu link info/link width/current",
    "pcie.link.width.max": "pci/gpu link info/link width/max",
    "vbios_version": "vbios version",
    "inforom.img": "inforom version/image version",
}
_COUNTERS: dict[str, tuple[str, Reader]] = {
    "ecc.errors.corrected.volatile.total": ("ecc_corrected_volatile", count),
    "ecc.errors.corrected.volatile.device_memory": ("ecc_corrected_dram", count),
    "ecc.errors.corrected.volatile.dram": ("ecc_corrected_dram", count),
    "ecc.errors.corrected.volatile.sram": ("ecc_corrected_sram", count),
    "ecc.errors.corrected.aggregate.total": ("ecc_corrected_aggregate", count),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_volatile", count),
    "ecc.errors.uncorrected.volatile.device_memory": ("ecc_uncorrected_dram", count),
    "ecc.errors.uncorrected.volatile.dram": ("ecc_uncorrected_dram", count),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_aggregate", count),
    "compute_cap": ("compute_capability", text_of),
    "remapped_rows.correctable": ("remap_correctable", count),
    "remapped_rows.uncorrectable": ("remap_uncorrectable", count),
    "remapped_rows.pending": ("remap_pending", flag),
    "remapped_rows.failure": ("remap_failure", flag),
    "gpu_recovery_action": FIELDS["gpu recovery action"],
}
_RESETS = {"reset_status.reset_required": 1, "reset_status.drain_and_reset_recommended": 4}
_IDENTITY = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_OF_MACHINE = ("driver_version",)
_NAME = re.compile(r"\s*([\w.]+)(?: \[([\w %/]+)\])?\s*$")
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_REASONS = {
    "hw_slowdown": "hw slowdown",
    "hw_thermal_slowdown": "hw thermal slowdown",
    "hw_power_brake_slowdown": "hw power brake slowdown",
    "sw_thermal_slowdown": "sw thermal slowdown",
    "sw_power_cap": "sw power cap",
    "gpu_idle": "idle",
    "sync_boost": "sync boost",
    "applications_clocks_setting": "applications clocks setting",
}
MOST_ROWS = 4096


def read_csv(lines: Sequence[Line]) -> Record:
    """The record of a table with a line of names; without one its columns are unknown, and nothing is read."""
    record = Record("nvidia-smi --query-gpu")
    header: list[tuple[str, str]] = []
    cards: dict[str, Card] = {}
    for number, line in lines[:MOST_ROWS]:
        import csv  # few reports have such a table

        cells = next(csv.reader([line[:4096]], skipinitialspace=True), [])
        if not header:
            header = _names(cells)
        elif len(cells) != len(header):
            if line.strip():
                break
        else:
            _row(record, cards, header, cells, number)
    # A table that was printed every few seconds lists each GPU again: the last row of each is read.
    record.cards = list(cards.values())
    indices = {card.index for card in record.cards}
    record.is_whole = None not in indices and indices == set(range(len(indices)))
    record.about = f"{len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    return record


def _names(cells: Sequence[str]) -> list[tuple[str, str]]:
    found = [_NAME.match(cell) for cell in cells]
    names = [(each[1].lower(), each[2] or "") for each in found if each is not None]
    known = (*_OF_QUERY, *_COUNTERS, *_IDENTITY, *_OF_MACHINE, "timestamp", "count", "driver_version")
    is_table = len(names) == len(cells) > 1 and sum(
        n in known or n in _RESETS or bool(_REASON.match(n)) for n, _ in names
    ) * 2 >= len(names)
    return names if is_table else []


def _row(
    record: Record, cards: dict[str, Card], header: Sequence[tuple[str, str]], cells: Sequence[str], line: int
) -> None:
    card = Card(line)
    for (name, unit), cell in zip(header, cells, strict=True):
        text = cell.strip()
        if name == "index":
            card.index = integer(text)
        elif name in ("uuid", "gpu_uuid"):
            card.uuid = text if text.startswith("GPU-") else None
        elif name in ("pci.bus_id", "gpu_bus_id"):
            card.bus_id = bus_id_of(text)
        elif name == "driver_version":
            record.say("gpu.driver_version", None if absence_of(text) else text, line)
        else:
            _cell(card, name, unit, text, line)
    key = card.uuid or card.bus_id or (None if card.index is None else str(card.index))
    if key is not None:
        cards[key] = card


def _cell(card: Card, name: str, unit: str, text: str, line: int) -> None:
    if name in _RESETS:
        before = card.device.get("recovery_action")
        if text in ("Yes", "No") and (before is None or not before.value):
            card.device["recovery_action"] = Said(_RESETS[name] if text == "Yes" else 0, line)
        return
    reason = _REASON.match(name)
    if reason is not None:
        bit = EVENT_BITS.get(_REASONS.get(reason[1], ""))
        before = card.device.get("clock_event_reasons", Said(0, line))
        if reason[1] == "active" and re.match(r"0x[0-9a-fA-F]{1,16}$", text):
            card.device["clock_event_reasons"] = Said(int(text, 16), line)
        elif bit is not None and text in ("Active", "Not Active"):
            card.device["clock_event_reasons"] = Said(before.value | (bit if text == "Active" else 0), line)
        return
    field = FIELDS.get(_OF_QUERY.get(name, "")) or _COUNTERS.get(name)
    if field is not None and (field[1] not in (mebibytes, milliwatts) or unit in ("MiB", "W", "")):
        put(card, *field, text, line)
