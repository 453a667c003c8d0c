"""`nvidia-smi -q` and `nvidia-smi -q -x`: every value of every GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpdoctor.tool_output.record import Card, Line, Record, Said, bus_id_of, integer
from ddpdoctor.tool_output.smi_fields import EVENT_BITS, FIELDS, HEALTH_BITS, HISTOGRAM, SUMS, field_of
from ddpdoctor.tool_output.smi_values import absence_of, put

__all__ = ["read_query", "read_query_xml"]

_LABEL = re.compile(r"(\s*)([A-Za-z][^:]{0,60}?)\s*(?: : ?|:$)(.*)$")
_TITLE = re.compile(r"(\s*)([A-Za-z][\w .()/-]{0,60})$")
_GPU = re.compile(r"(\s*)GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_CORRUPT = re.compile(r"WARNING: infoROM is corrupted at gpu ([0-9A-Fa-f:.]+)", re.I)
_TOKEN = re.compile(r"<(/?)([A-Za-z_][\w.-]{0,60})((?:\s[^<>]{0,200})?)(/?)>([^<]{0,400})")
_ATTRIBUTE = re.compile(r'id="([^"]{1,40})"')
DEEPEST = 12
FABRIC_STATES = {"not started": 1, "in progress": 2, "completed": 3}
HEALTH_SUMMARIES = {"healthy": 1, "unhealthy": 2, "limited capacity": 3}
RESETS = {"gpu reset status/reset required": 1, "gpu reset status/drain and reset recommended": 4}
"""The recovery actions that drivers before 565 print as two flags."""
STATUSES = {"success": 0, "timeout": 10, "in use": 19, "insufficient resources": 23, "not ready": 27}
"""The NVML codes of the texts that nvidia-smi prints for the status of a registration (nvml.h: nvmlReturn_t)."""
UNKNOWN_STATUS = 999
"""NVML_ERROR_UNKNOWN, for a registration that failed with a text that is not translated here."""

_Value = tuple[tuple[str, ...], str, int]
"""The labels above a value, its text, and its line."""


def read_query(lines: Sequence[Line]) -> Record:
    """The record of the text form, whole or of some sections (`-d ECC`)."""
    record = Record("nvidia-smi -q")
    _read(record, _values_of_text(lines), is_xml=False)
    for number, line in lines:
        matched = _CORRUPT.match(line.strip())
        card = _card_at(record, matched[1]) if matched is not None else None
        if card is not None:
            card.device["inforom"] = Said("CORRUPTED_INFOROM", number)
    return record


def read_query_xml(lines: Sequence[Line]) -> Record:
    """The record of the XML form."""
    record = Record("nvidia-smi -q -x")
    _read(record, _values_of_xml(lines), is_xml=True)
    return record


def _card_at(record: Record, text: str) -> Card | None:
    bus_id = bus_id_of(text)
    return next((card for card in record.cards if card.bus_id == bus_id), None)


def _read(record: Record, values: Iterator[_Value], *, is_xml: bool) -> None:
    attached = None
    for labels, text, number in values:
        if labels and labels[0] == "\0gpu":
            if len(labels) == 1:
                record.cards.append(Card(number, bus_id=bus_id_of(text)))
            elif record.cards:
                _tell(record.cards[-1], field_of(labels[1:], is_xml=is_xml), text, number)
            continue
        path = field_of(labels, is_xml=is_xml)
        if path == "driver version":
            record.say("gpu.driver_version", text or None, number)
        elif path == "cuda version":
            record.say("gpu.driver_cuda", _cuda(text), number)
        elif path == "attached gpus":
            attached = integer(text)
    record.is_whole = attached is not None and attached == len(record.cards)
    if record.is_whole:
        for index, card in enumerate(record.cards):
            card.index = index
    shown = f"{len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    record.about = shown if record.is_whole or attached is None else f"{len(record.cards)} of {attached} GPUs"


def _cuda(text: str) -> int | None:
    matched = re.match(r"(\d{1,2})\.(\d{1,2})$", text)
    return None if matched is None else int(matched[1]) * 1000 + int(matched[2]) * 10


def _tell(card: Card, path: str, text: str, line: int) -> None:
    """Record one value of a GPU."""
    if path in ("gpu uuid", "uuid"):
        card.uuid = text if text.startswith("GPU-") else card.uuid
    elif path in FIELDS:
        name, read = FIELDS[path]
        put(card, name, read, text, line)
    elif path in SUMS:
        for name in SUMS[path]:
            _add(card, name, text, line)
    elif path in RESETS:
        _reset(card, RESETS[path], text, line)
    elif path.startswith("clocks event reasons/"):
        _event(card, path.rpartition("/")[2], text, line)
    elif path.startswith("remapped rows/"):
        _bank(card, path.rpartition("/")[2], text, line)
    elif path.startswith("fabric"):
        _fabric(card, path.partition("/")[2], text, line)
    elif (code := absence_of(text)) is not None:
        _absent_below(card, path, code)


def _reset(card: Card, action: int, text: str, line: int) -> None:
    """`Reset Required : Yes` is the recovery action 1; both flags `No` are the action 0."""
    word, before = text.strip().lower(), card.device.get("recovery_action")
    if word == "yes" and (before is None or not before.value):
        card.device["recovery_action"] = Said(action, line)
    elif word == "no" and before is None:
        card.device["recovery_action"] = Said(0, line)


def _absent_below(card: Card, path: str, code: str) -> None:
    """`Remapped Rows : N/A`: nothing below the label could be read."""
    for known, (name, _) in FIELDS.items():
        if known.startswith(path + "/"):
            card.absent.setdefault(name, code)


def _add(card: Card, name: str, text: str, line: int) -> None:
    """Add a counter to a field; the line is that of the largest counter."""
    code, number = absence_of(text), integer(text)
    if code is not None:
        card.absent.setdefault(name, code)
    elif number is not None and number >= 0:
        before = card.device.get(name)
        total = number + (before.value if before is not None else 0)
        card.device[name] = Said(total, before.line if before is not None and not number else line)


def _event(card: Card, label: str, text: str, line: int) -> None:
    bit, word = EVENT_BITS.get(label), text.strip().lower()
    if bit is None or word not in ("active", "not active"):
        return
    before = card.device.get("clock_event_reasons", Said(0, line))
    is_on = word == "active"
    card.device["clock_event_reasons"] = Said(before.value | (bit if is_on else 0), line if is_on else before.line)


def _bank(card: Card, label: str, text: str, line: int) -> None:
    """One line of the histogram of spare rows: `Low : 0 bank(s)`."""
    number = integer(text)
    if label not in (*HISTOGRAM, *(f"row remapper histogram {each}" for each in HISTOGRAM)) or number is None:
        return
    before = card.device.get("remap_histogram", Said([], line))
    if len(before.value) < len(HISTOGRAM):
        card.device["remap_histogram"] = Said([*before.value, number], line if number else before.line)


def _fabric(card: Card, label: str, text: str, line: int) -> None:
    word = text.strip().lower()
    fabric = card.node.get("fabric")
    if label == "state" and word in FABRIC_STATES:
        card.node["fabric"] = Said({"state": FABRIC_STATES[word]}, line)
        return
    if fabric is None or absence_of(text) is not None:
        return
    told: dict[str, object] = fabric.value
    if label == "status":
        told["status"] = STATUSES.get(word, UNKNOWN_STATUS)
        card.node["fabric"] = Said(told, fabric.line if word == "success" else line)
    elif label == "cliqueid":
        told["clique"] = integer(text)
    elif label == "clusteruuid":
        told["cluster_uuid"] = text.strip()
    elif label == "health/summary" and word in HEALTH_SUMMARIES:
        told["health_summary"] = HEALTH_SUMMARIES[word]
        card.node["fabric"] = Said(told, fabric.line if word == "healthy" else line)
    elif label.startswith("health/"):
        _health(card, label.partition("/")[2], word, line)


def _health(card: Card, label: str, word: str, line: int) -> None:
    bit, words = HEALTH_BITS.get(label, (0, {}))
    if word not in words:
        return
    line_before, told = card.node["fabric"].line, card.node["fabric"].value
    told["health_mask"] = (told.get("health_mask") or 0) | words[word] << bit
    card.node["fabric"] = Said(told, line if words[word] == 1 else line_before)


def _values_of_text(lines: Sequence[Line]) -> Iterator[_Value]:
    """The values with the labels above them: a label belongs to those that are indented less."""
    above: list[tuple[int, str]] = []
    base = None
    for number, line in lines:
        gpu = _GPU.match(line)
        if gpu is not None:
            above, base = [(len(gpu[1]), "\0gpu")], len(gpu[1])
            yield ("\0gpu",), gpu[2], number
            continue
        found = _LABEL.match(line.expandtabs(4)) or _TITLE.match(line.expandtabs(4))
        if found is None:
            continue
        depth, label = len(found[1]), found[2]
        while above and above[-1][0] >= depth and above[-1][1] != "\0gpu":
            above.pop()
        if base is not None and depth <= base:
            above = []
        text = found[3].strip() if found.lastindex == 3 else ""
        labels = (*(name for _, name in above), label)
        if found.lastindex == 3 and text:
            yield labels, text, number
        if len(above) < DEEPEST:
            above.append((depth, label))


def _values_of_xml(lines: Sequence[Line]) -> Iterator[_Value]:
    """The texts of elements with the names of the elements above them, below `nvidia_smi_log`."""
    above: list[str] = []
    for number, line in lines:
        for closing, name, attributes, empty, text in _TOKEN.findall(line):
            if closing:
                if name in above:
                    del above[len(above) - 1 - above[::-1].index(name) :]
                continue
            if name == "nvidia_smi_log" or empty or len(above) > DEEPEST:
                continue
            above.append(name)
            identity = _ATTRIBUTE.search(attributes)
            labels = ("\0gpu", *above[1:]) if above[0] == "gpu" else tuple(above)
            if above == ["gpu"] and identity is not None:
                yield labels, identity[1], number
            elif text.strip() and above != ["gpu"]:
                yield labels, text.strip(), number
