"""The table that plain `nvidia-smi` prints: two or three rows per GPU, from driver 384 to 595."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.record import Card, Line, Record, Said, bus_id_of
from ddpdoctor.tool_output.smi_values import absence_of, count, flag, mebibytes, milliwatts, put, text_of, word_of

__all__ = ["read_failure", "read_table"]

_HEADER = pattern(
    r"\| NVIDIA-SMI ([^\s|]{1,40})[^|]{0,60}?(?:Driver Version: ([^\s|]{1,40}))?\s{1,40}"
    r"(?:CUDA Version: ([^\s|]{1,20}))?\s{0,40}\|"
)
_FIRST = pattern(
    r"\|\s{1,20}(\d{1,3})\s{1,20}(\S[^|]{0,80}?)\s{1,60}(On|Off|N/A|ERR!|TCC|WDDM|MCDM)?\s{0,20}\|"
    r"\s{0,20}([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{1,20})\s{1,20}\S{1,10}\s{0,20}\|"
)
_SECOND = pattern(
    r"\|\s{0,20}([^\s|]{1,20})\s{1,20}([^\s|]{1,20})\s{1,20}([^\s|]{1,20})\s{1,20}([^\s|]{1,20})\s{0,20}/\s{0,20}([^\s|]{1,20})"
    r"\s{0,20}\|([^|/]{1,60})/([^|]{1,60})\|([^|]{0,60})\|"
)
_THIRD = pattern(r"\|\s+\|[^|]*\|\s+(Enabled\*?|Disabled\*?|N/A)\s*\|")
_CUDA = pattern(r"(\d{1,2})\.(\d{1,2})$")
_MODES = {"default": 0, "exclu.": 3, "e. thread": 1, "prohibited": 2, "e. process": 3, "prohib.": 2}
_LOST = "ERR!"

_HANDLE = pattern(
    r"Unable to determine the device handle for (?:gpu ?\d{0,2}: )?(?:GPU ?)?([0-9A-Fa-f]{3,8}:[0-9A-Fa-f:.]+): (.*)",
    re.I,
)
_INIT = pattern(r"(NVIDIA-SMI has failed)|Failed to initialize NVML: (.+)|(No devices were found)")
_INIT_CODES = {
    "driver/library version mismatch": "LIB_RM_VERSION_MISMATCH",
    "driver not loaded": "DRIVER_NOT_LOADED",
    "insufficient permissions": "NO_PERMISSION",
    "gpu access blocked by the operating system": "OPERATING_SYSTEM",
    "unknown error": "UNKNOWN",
    "not found": "LIBRARY_NOT_FOUND",
}


def read_table(lines: Sequence[Line]) -> Record:
    """The record of one table. Names that end in `...` are shortened by nvidia-smi and are left out."""
    record, card = Record("nvidia-smi"), None
    for number, line in lines:
        _header(record, line, number)
        first = _FIRST.search(line)
        if first is not None:
            card = _card(first, number)
            record.cards.append(card)
            continue
        second = (
            _SECOND.search(line)
            if card is not None and "utilization_percent" not in {**card.device, **card.absent}
            else None
        )
        if card is not None and second is not None:
            _readings(card, second, number)
            continue
        third = _THIRD.search(line)
        if card is not None and third is not None and "mig_mode" not in card.device:
            put(card, "mig_mode", flag, third[1].rstrip("*"), number)
            if third[1].endswith("*"):
                card.device["mig_pending"] = Said(1 - int(card.device["mig_mode"].value), number)
        if "Processes" in line:
            card = None
    record.about = f"{len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    return record


def _header(record: Record, line: str, number: int) -> None:
    found = _HEADER.search(line)
    if found is None:
        return
    record.say("gpu.driver_version", found[2], number)
    cuda = _CUDA.match(found[3] or "")
    record.say("gpu.driver_cuda", int(cuda[1]) * 1000 + int(cuda[2]) * 10 if cuda else None, number)


def _card(found: re.Match[str], number: int) -> Card:
    card = Card(number, index=int(found[1]), bus_id=bus_id_of(found[4]))
    if not found[2].endswith(("...", "..")) and _LOST not in found[2]:
        put(card, "name", text_of, found[2], number)
    if found[3] in ("On", "Off"):
        put(card, "persistence_mode", flag, found[3], number)
    tail = re.search(r"\|\s*(\S+)\s*\|\s*$", found.string)
    if tail is not None:
        _ecc(card, tail[1], number)
    if _LOST in (found[2], found[3]):
        card.absent["handle"] = "UNKNOWN"
    return card


def _ecc(card: Card, text: str, number: int) -> None:
    """The column `Volatile Uncorr. ECC`: a count, `Off`, or `N/A` without ECC."""
    if text == "Off":
        card.device["ecc_mode"] = Said(0, number)
        card.absent["ecc_uncorrected_volatile"] = "NOT_SUPPORTED"
        return
    put(card, "ecc_uncorrected_volatile", count, text, number)
    if "ecc_uncorrected_volatile" in card.device:
        card.device["ecc_mode"] = Said(1, number)


def _readings(card: Card, found: re.Match[str], number: int) -> None:
    """The second row: fan, temperature, state, power, memory, utilization and compute mode."""
    _, heat, state, power, limit, used, total, last = found.groups()
    put(card, "temperature_celsius", count, heat, number)
    put(card, "performance_state", count, state, number)
    put(card, "power_usage_mw", milliwatts, power, number)
    put(card, "power_limit_mw", milliwatts, limit, number)
    put(card, "memory_used_bytes", mebibytes, used.strip(), number)
    put(card, "memory_total_bytes", mebibytes, total.strip(), number)
    words = last.split(None, 1)
    put(card, "utilization_percent", count, words[0] if words else "N/A", number)
    if len(words) > 1:
        put(card, "compute_mode", word_of(_MODES), words[1].strip(), number)
    if [text for text in (heat, state, power) if absence_of(text) == "UNKNOWN"]:
        # nvidia-smi prints ERR! where NVML failed for another reason than that the board has no such sensor.
        card.absent["handle"] = "UNKNOWN"


def read_failure(lines: Sequence[Line]) -> Record:
    """What nvidia-smi prints when it cannot query the driver or a GPU."""
    record = Record("nvidia-smi", about="an error message", is_whole=False)
    for number, line in lines:
        handle = _HANDLE.search(line)
        if handle is not None:
            bus_id = bus_id_of(handle[1])
            if bus_id is not None:
                code = "GPU_IS_LOST" if "lost" in handle[2].lower() else absence_of(handle[2].strip(" .")) or "UNKNOWN"
                record.cards.append(Card(number, bus_id=bus_id, absent={"handle": code}))
            continue
        found = _INIT.search(line)
        if found is None:
            continue
        if found[1]:
            record.say("gpu.nvml_error", "DRIVER_NOT_LOADED", number)
        elif found[2]:
            code = next((c for words, c in _INIT_CODES.items() if words in found[2].lower()), "UNKNOWN")
            record.say("gpu.nvml_error", code, number)
        else:
            record.say("gpu.no_device", True, number)
    return record
