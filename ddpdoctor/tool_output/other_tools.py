"""The log of NVIDIA's fabric manager, the summary of ibdiagnet, and tools whose output is recognized and not judged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.tool_output.record import Line, Record, Said

__all__ = ["read_fabric_manager", "read_ibdiagnet", "refused"]

_ENTRY = re.compile(r"\[(\w{3} \d\d \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]+)\s*\] \[tid \d+\] (.*)$")
_VERSION = re.compile(r"Fabric Manager - version (\d[\d.]+)|Fabric Manager version:? (\d[\d.]+)", re.I)
_STARTED = re.compile(
    r"Successfully configured all the available (?:GPUs|NVSwitches)|Fabric Manager initialized|Fabric Manager starting",
    re.I,
)
MOST_ERRORS = 20
LONGEST = 240
_STAGE = re.compile(r"-I- (\w[\w /]{1,39}[\w/])\s+(\d{1,6})\s+(\d{1,6})\b")
_PROBLEM = re.compile(r"-E- (.*)$")


def read_fabric_manager(lines: Sequence[Line]) -> Record:
    """The record of fabricmanager.log: its version, and the errors since its last start."""
    record = Record("fabric manager log")
    errors: list[tuple[str, int]] = []
    for number, line in lines:
        entry = _ENTRY.match(line.strip())
        if entry is None:
            continue
        version, text = _VERSION.search(entry[3]), entry[3].strip()
        if version is not None:
            record.values.pop("topo.fabric_log.version", None)
            record.say("topo.fabric_log.version", version[1] or version[2], number)
        if _STARTED.search(text):
            errors = []
        if entry[2] in ("ERROR", "FATAL", "CRITICAL"):
            errors.append((text[:LONGEST], number))
    record.say(
        "topo.fabric_log.errors", [text for text, _ in errors[:MOST_ERRORS]], errors[0][1] if errors else lines[0][0]
    )
    record.about = f"{len(lines)} lines"
    return record


def read_ibdiagnet(lines: Sequence[Line]) -> Record:
    """The record of the summary of ibdiagnet: errors by stage, for the whole fabric."""
    record = Record("ibdiagnet")
    for number, line in lines:
        problem, stage = _PROBLEM.match(line.strip()), _STAGE.match(line.strip())
        if problem is not None:
            record.say("net.fabric_errors", [problem[1][:LONGEST]], number)
        elif stage is not None and int(stage[3]):
            record.say("net.fabric_errors", [f"{stage[1].strip()}: {stage[3]} errors"], number)
    record.about = "summary of the fabric"
    record.values.setdefault("net.fabric_errors", Said([], lines[0][0] if lines else 1))
    return record


def refused(tool: str, reason: str, lines: Sequence[Line]) -> Record:
    """The record of a tool whose output is not judged."""
    return Record(tool, about=f"{len(lines)} lines", refusal=reason)
