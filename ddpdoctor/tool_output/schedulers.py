"""`scontrol show node`, `scontrol show job` and `kubectl describe node`: what the scheduler says about a node."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.tool_output.record import Line, Record, integer

__all__ = ["read_kubectl_node", "read_scontrol_job", "read_scontrol_nodes"]

_WORD = re.compile(r"\b(\w+)=(\S*)")
_REASON = re.compile(r"\s*Reason=(.*)$")
_GPUS = re.compile(r"gpu(?::[\w.-]+)?[:=](\d{1,4})")
_SECTION = re.compile(r"([A-Z][\w -]*):\s*(.*)$")
_PAIR = re.compile(r"\s+(nvidia\.com/gpu):\s+\"?(\d{1,4})\"?\s*$")
_OF_YAML = re.compile(r"\s*(allocatable|capacity):\s*$")
_HOST_LABEL = re.compile(r"\s+kubernetes\.io/hostname[:=]\s*([\w.-]+)")
_CONDITION = re.compile(
    r"\s+(Ready|MemoryPressure|DiskPressure|PIDPressure|NetworkUnavailable|\w*(?:GPU|Gpu|Xid|XID|NVLink|Nvlink)\w*)\s+(True|False|Unknown)\s+(.*)$"
)
LONGEST = 200


def read_scontrol_nodes(lines: Sequence[Line]) -> list[Record]:
    """One record per node that is shown."""
    records: list[Record] = []
    for number, line in lines:
        words = dict(_WORD.findall(line))
        if "NodeName" in words:
            records.append(
                Record("scontrol show node", about="state of the node", host=words["NodeName"].partition(".")[0])
            )
        if not records:
            continue
        reason = _REASON.match(line)
        if "State" in words:
            records[-1].say("host.scheduler.state", words["State"], number)
        if reason is not None:
            records[-1].say("host.scheduler.reason", reason[1].strip()[:LONGEST], number)
        gres = _GPUS.search(words.get("Gres", ""))
        if gres is not None:
            records[-1].say("host.scheduler.gpus", int(gres[1]), number)
    return records


def read_scontrol_job(lines: Sequence[Line]) -> Record:
    """The record of a job: it is about the job and not about a machine."""
    record = Record("scontrol show job", about="one job")
    for number, line in lines:
        words = dict(_WORD.findall(line))
        if "JobState" in words:
            record.say("scheduler_job.state", words["JobState"], number)
        if "Reason" in words:
            record.say("scheduler_job.reason", words["Reason"], number)
    state = record.values.get("scheduler_job.state")
    shown = state.value if state is not None else "unknown"
    record.refusal = f"the state of a job ({shown}); its output shows why it ended"
    return record


def read_kubectl_node(lines: Sequence[Line]) -> Record:
    """The record of `kubectl describe node` or of the node's YAML: conditions, and GPUs that it has and can give to pods."""
    record = Record("kubectl", about="a node")
    section = ""
    gpus: dict[str, tuple[int, int]] = {}
    for number, line in lines:
        begins, pair, condition = _SECTION.match(line), _PAIR.match(line), _CONDITION.match(line)
        yaml, label = _OF_YAML.match(line), _HOST_LABEL.match(line)
        if label is not None:
            record.host = record.host or label[1].partition(".")[0]
        elif yaml is not None:
            section = yaml[1].capitalize()
        elif begins is not None:
            section = begins[1]
            if section == "Name" and record.host is None:
                record.host = begins[2].strip().partition(".")[0]
            elif section == "Unschedulable":
                record.say("host.scheduler.is_unschedulable", begins[2].strip() == "true", number)
        elif pair is not None and section in ("Capacity", "Allocatable"):
            gpus[section] = (integer(pair[2]) or 0, number)
        elif condition is not None and section == "Conditions":
            _condition(record, condition, number)
    if "Capacity" in gpus:
        record.say("host.scheduler.gpus", *gpus["Capacity"])
    if "Allocatable" in gpus:
        record.say("host.scheduler.gpus_usable", *gpus["Allocatable"])
    return record


def _condition(record: Record, found: re.Match[str], number: int) -> None:
    name, status = found[1], found[2]
    is_bad = status != "True" if name == "Ready" else status == "True"
    if name == "Ready":
        record.say("host.scheduler.state", "Ready" if status == "True" else f"NotReady ({status})", number)
    if is_bad:
        words = re.split(r"\s{2,}", found[3].strip())
        record.say("host.scheduler.reason", f"{name} is {status}: {words[-1]}"[:LONGEST], number)
