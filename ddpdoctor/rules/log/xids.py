"""Xids and SXids in logs: every cause that has one is told with its GPU, its age, and what NVIDIA says to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.facts.log.gpus import gpu_at
from ddpdoctor.facts.xids import BY_CAUSE, Xid, meaning
from ddpdoctor.findings import Finding, Where
from ddpdoctor.rules import area_of, in_logs, load
from ddpdoctor.rules.gpu.xids import told
from ddpdoctor.rules.log.signatures import by_signatures

SWITCHES: dict[str, Callable[[Xid], bool]] = {
    "TOPO015": lambda xid: xid.is_fatal,
    "TOPO016": lambda xid: xid.is_harmless,
}
"""The causes that faults of NVSwitches show."""


def _look(cause: str, log: Log) -> Iterator[Finding]:
    kept = [xid for xid in log.xids if _shows(cause, xid)]
    yield from told(kept, functools.partial(_place, log), of_a_log=True)
    # What ranks and other programs print about the same cause has no Xid.
    numbers = {(xid.source, near) for xid in kept for near in range((xid.line or 0) - 3, (xid.line or 0) + 4)}
    rest = tuple(x for x in log.lines if "Xid (" not in x.text and (x.source, x.number) not in numbers)
    for each in by_signatures(r for r in load((area_of(cause),)) if r.code == cause).values():
        yield from each(replace(log, lines=rest))


def _shows(cause: str, xid: Xid) -> bool:
    if cause in SWITCHES:
        return SWITCHES[cause](xid)
    return not xid.is_switch and meaning(xid).cause == cause


def _place(log: Log, xid: Xid) -> tuple[str, Where]:
    file = log.sources[xid.source].name if xid.source is not None else None
    host = xid.host or (log.sources[xid.source].who.host if xid.source is not None else None)
    gpu = None if xid.is_switch else gpu_at(log, host, xid.bus_id)
    who = (
        f"the {'NVSwitch' if xid.is_switch else 'GPU'} at {xid.bus_id}" if gpu is None else f"GPU {gpu} ({xid.bus_id})"
    )
    return f"{who} of {host}" if host else who, Where(host=host, gpu=gpu, file=file, line=xid.line)


for _cause in (*BY_CAUSE, *SWITCHES):
    in_logs(_cause)(functools.partial(_look, _cause))
