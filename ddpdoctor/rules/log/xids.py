"""Xids and SXids in logs: every cause is reported with its GPU, its age, and NVIDIA's recommended action."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.facts.xids import Xid, XidKind, meaning
from ddpdoctor.findings import Finding, Role, Severity, Where
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import XID_FOLLOW_LINES, XID_LINES
from ddpdoctor.logs.gpu_addresses import gpu_at
from ddpdoctor.rules import Rule
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import application_fault_xid, device_xid_findings
from ddpdoctor.rules.log.signatures import by_signatures

KERNELS = (13, 31)
"""Xids that a program's kernel causes on the GPU."""
FOLLOWING = (109,)
"""Xids of its channel that are consequences."""
SOON_SECONDS = 60.0
"""A consequence follows within this time, or within XID_FOLLOW_LINES if the lines have no times."""

__all__ = ["xid_findings", "xids_of"]


def xids_of(kind: XidKind) -> Callable[[Xid], bool]:
    """Whether an Xid of a GPU shows this kind of fault."""
    return lambda xid: not xid.is_switch and meaning(xid).kind is kind


def xid_findings(rule: Rule, shows: Callable[[Xid], bool], log: Log) -> Iterator[Finding]:
    """The findings of a cause from Xids, and from its signatures in lines without an Xid."""
    kept = [xid for xid in log.xids if shows(xid)]
    for found in device_xid_findings(kept, functools.partial(_place, log), of_a_log=True):
        yield _in_order(log, rule, kept, found)
    # messages of ranks and other programs about the same cause have no Xid
    numbers = {
        (xid.source, near)
        for xid in kept
        for near in range((xid.line or 0) + 1 - XID_LINES, (xid.line or 0) + XID_LINES)
    }
    rest = tuple(x for x in log.lines if "Xid (" not in x.text and (x.source, x.number) not in numbers)
    for found in by_signatures(rule)(replace(log, lines=rest)) if rule.signatures else ():
        yield _named_above(log, found)


def _named_above(log: Log, found: Finding) -> Finding:
    """The finding with its GPU, if the kernel named that in one of the lines above: its message has several lines."""
    for line, match in context_lines(log, "gpu_of_kernel"):
        is_above = found.where.line is not None and 0 <= found.where.line - line.number < XID_LINES
        if is_above and found.where.file == log.sources[line.source].name:
            xid = Xid(0, match["bus"].lower()[-10:], source=line.source, line=found.where.line, host=line.who.host)
            device, where = _place(log, xid)
            return replace(found, about=device, where=where)
    return found


def _in_order(log: Log, rule: Rule, kept: list[Xid], found: Finding) -> Finding:
    """The finding as a consequence of a kernel fault on the same GPU shortly before, or as that fault."""
    last = next(xid for xid in kept if _place(log, xid)[1] == found.where)
    same = [xid for xid in log.xids if (xid.source, xid.host, xid.bus_id) == (last.source, last.host, last.bus_id)]
    own = [xid for xid in same if xid in kept]
    if rule.xids is XidKind.APPLICATION_FAULT_XID and any(_follows(later, xid) for later in same for xid in own):
        return replace(found, role=Role.CAUSE)
    if own and all(any(_follows(xid, earlier) for earlier in same) for xid in own):
        softer = Severity.WARNING if found.severity in (None, Severity.ERROR) else found.severity
        return replace(found, severity=softer, role=Role.CONSEQUENCE, caused_by=application_fault_xid.rule.code)
    return found


def _follows(xid: Xid, earlier: Xid) -> bool:
    if xid.code not in FOLLOWING or earlier.code not in KERNELS or xid.restarts != earlier.restarts:
        return False
    if xid.age_seconds is None or earlier.age_seconds is None:
        return 0 < (xid.line or 0) - (earlier.line or 0) <= XID_FOLLOW_LINES
    return 0 <= earlier.age_seconds - xid.age_seconds <= SOON_SECONDS and (xid.line or 0) > (earlier.line or 0)


def _place(log: Log, xid: Xid) -> tuple[str, Where]:
    file = log.sources[xid.source].name if xid.source is not None else None
    host = xid.host or (log.sources[xid.source].who.host if xid.source is not None else None)
    gpu = None if xid.is_switch else gpu_at(log, host, xid.bus_id)
    device = (
        f"the {'NVSwitch' if xid.is_switch else 'GPU'} at {xid.bus_id or 'an unknown bus id'}"
        if gpu is None
        else f"GPU {gpu} ({xid.bus_id})"
    )
    return f"{device} of {host}" if host else device, Where(host=host, gpu=gpu, file=file, line=xid.line)
