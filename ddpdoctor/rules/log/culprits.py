"""Who decides a finding about a log: the only process, the first of several, or the one that reports it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.facts.log import Exit, Log, LogLine, Traceback, Who
from ddpdoctor.facts.xids import Xid
from ddpdoctor.findings import Culprit, Finding, Relation, Report
from ddpdoctor.logs.distances import NAMING_LINES, QUOTED_LINES
from ddpdoctor.logs.history import ENDED_BY_LAUNCHER
from ddpdoctor.logs.named_process import ToldProcess, named_process

__all__ = ["culprit_of", "with_culprits"]

ALIKE = 60
"""Characters by which two lines show the same, digits aside."""
NODE_FAILED = "DUE TO NODE FAILURE"
_DIGITS = re.compile(r"\d+")

_Spoken = LogLine | Traceback | Exit


def with_culprits(report: Report, log: Log) -> Report:
    """The report, with the process that decides each finding about this log."""
    findings = tuple(
        each if each.culprit is not None else replace(each, culprit=culprit_of(each, log)) for each in report.findings
    )
    return replace(report, findings=findings)


def culprit_of(found: Finding, log: Log) -> Culprit | None:
    """The process that decides this finding; None if the log names none, or does not show which of several was first."""
    peer = found.where.peer
    decisive = _decisive(found, log)
    if peer is not None and not found.ranks and found.where.rank is None:
        return Culprit(Relation.PEER, str(peer), host=str(peer))
    if decisive is None:
        return _of_where(found)
    if isinstance(decisive, Xid):
        return _of_gpu(found, decisive)
    if len(found.ranks) > 1:
        first = _first_of(found.ranks, decisive, log)
        return None if first is None else _culprit(Relation.FIRST, *_told(first, log), found)
    if found.ranks and decisive.who.rank not in (None, *found.ranks):
        return _of_where(found)
    who, named = _told(decisive, log)
    blamed = found.where.rank if found.where.rank is not None else next(iter(found.ranks), None)
    if blamed is not None:
        return _culprit(Relation.ONLY, replace(who, rank=blamed), named, found)
    if who.rank is None and named.rank is None:
        reported = _first_reported(decisive, log)
        is_same = reported is not None and who.host in (None, reported.who.host)
        if reported is not None and is_same and not _is_own_pid(who, reported):
            return _culprit(Relation.LAUNCHER, reported.who, ToldProcess(), found)
    relation = Relation.ONLY if _is_blamed(found, who, named) else Relation.REPORTED_BY
    return _culprit(relation, who, named, found) or _of_excerpt(found, decisive, log)


def _of_excerpt(found: Finding, decisive: _Spoken, log: Log) -> Culprit | None:
    """The only rank that a short text names, if the decisive line does not name any."""
    whos = [each.who for each in (*log.spoken, *log.tails, *log.unfinished) if each.source == decisive.source]
    ranks = {who.rank for who in whos} - {None}
    if len(ranks) != 1 or log.sources[decisive.source].lines > QUOTED_LINES:
        return None
    return _culprit(Relation.REPORTED_BY, next(who for who in whos if who.rank is not None), ToldProcess(), found)


def _is_blamed(found: Finding, who: Who, named: ToldProcess) -> bool:
    """Whether the finding names this process as the one at fault, or the message itself does."""
    host = who.host or named.host
    if host is not None and found.where.host is not None:
        return True
    return named.pid is not None and who.rank is None and named.rank is None


def _is_own_pid(who: Who, reported: Exit) -> bool:
    """Whether the line's own process is known to be another one than the launcher's."""
    return who.pid is not None and reported.who.pid is not None and who.pid != reported.who.pid


def _of_where(found: Finding) -> Culprit | None:
    """The process that the place of a finding names, where no line of the log does."""
    where = found.where
    who = Who(where.rank, where.local_rank, where.node_rank, where.host)
    return None if where.rank is None and where.host is None else _culprit(Relation.ONLY, who, ToldProcess(), found)


def _of_gpu(found: Finding, xid: Xid) -> Culprit:
    named = named_process(xid.text)
    gpu = str(found.where.gpu) if found.where.gpu is not None else xid.bus_id
    host = found.where.host or xid.host
    text = f"GPU {gpu}" + (f" on {host}" if host else "")
    return Culprit(Relation.ONLY, text, found.where.rank, host=host, pid=named.pid, gpu=gpu)


def _decisive(found: Finding, log: Log) -> _Spoken | Xid | None:
    """What the log holds at the place of the first evidence."""
    for evidence in found.evidence[:1]:
        name, _, number = evidence.path.rpartition(":")
        sources = [index for index, source in enumerate(log.sources) if source.name == name]
        if sources and number.isdigit():
            return _items(log).get((sources[0], int(number)))
    return None


@functools.lru_cache(2)
def _items(log: Log) -> dict[tuple[int, int], _Spoken | Xid]:
    """What stands at each place of the log that matters; a traceback is preferred to the line that ends it."""
    found: dict[tuple[int, int], _Spoken | Xid] = {}
    found.update({(each.source, each.number): each for each in (*log.heads, *log.tails, *log.lines)})
    found.update({(each.source, each.number): each for each in log.exits})
    found.update({(each.source, each.number): each for each in (*log.unfinished, *log.tracebacks)})
    found.update({(each.source, each.line): each for each in log.xids if each.source is not None and each.line})
    return found


def _told(each: _Spoken, log: Log) -> tuple[Who, ToldProcess]:
    """Who printed it, and whom its words name, or those of the lines next to it."""
    text = _text(each, log)
    named = named_process(text)
    if NODE_FAILED in text:  # Slurm prints it on the first node of the job
        told = (named_process(line.text) for line in log.lines if "ode failure on" in line.text)
        lost = [node for node in told if node.host is not None]
        return (Who(), lost[0]) if lost else (each.who, named)
    if each.who.rank is None and named.rank is None:
        for line in _near(each, log):
            named = named.or_else(named_process(line.text))
    return each.who, named


def _text(each: _Spoken, log: Log) -> str:
    if isinstance(each, Traceback):
        return f"{each.exception}: {each.message}"
    if isinstance(each, LogLine):
        return each.text
    line = next((line for line in log.lines if (line.source, line.number) == (each.source, each.number)), None)
    return "" if line is None else line.text


def _near(each: _Spoken, log: Log) -> Iterable[LogLine]:
    """The lines of the same process next to it, the nearest first."""
    lines = {
        line.number: line
        for line in (*log.heads, *log.tails, *log.lines)
        if line.source == each.source
        and 0 < abs(line.number - each.number) <= NAMING_LINES
        and line.who.may_be(each.who)
    }
    return sorted(lines.values(), key=lambda line: abs(line.number - each.number))


def _first_of(ranks: Sequence[int], decisive: _Spoken, log: Log) -> _Spoken | None:
    """The first event of this kind that one of the ranks had, by its time or its place; None if neither decides."""
    alike = [each for each in _of_kind(decisive, log) if each.who.rank in ranks] or [decisive]
    launchers = [each for each in log.exits if each.is_first and each.who.rank in ranks]
    if isinstance(decisive, Exit) and launchers:
        return launchers[0] if len({each.who.rank for each in launchers}) == 1 else _earliest(launchers)
    if len({each.source for each in alike}) == 1:
        first = min(alike, key=lambda each: each.number)
        return first if first.who.rank is not None else None
    timed = _earliest(alike)
    if timed is not None:
        return timed
    return launchers[0] if len({each.who.rank for each in launchers}) == 1 else None


def _earliest(events: Sequence[_Spoken]) -> _Spoken | None:
    """The one with the earliest time; None if not all have a time of the same form, or two have the same."""
    times = [each.time or "" for each in events]
    if len({_DIGITS.sub("#", time) for time in times}) != 1 or not times[0]:
        return None
    first = min(events, key=lambda each: each.time or "")
    return first if times.count(first.time or "") == 1 else None


def _of_kind(decisive: _Spoken, log: Log) -> list[_Spoken]:
    """Everything in the log that shows the same."""
    if isinstance(decisive, Traceback):
        name = decisive.exception.rpartition(".")[2]
        return [each for each in log.tracebacks if each.exception.rpartition(".")[2] == name]
    if isinstance(decisive, Exit):
        return [each for each in log.exits if each.code == decisive.code]
    words = _DIGITS.sub("#", decisive.text)[:ALIKE]
    return [each for each in log.lines if _DIGITS.sub("#", each.text)[:ALIKE] == words]


def _first_reported(decisive: _Spoken, log: Log) -> Exit | None:
    """The process of the same source that its launcher or scheduler reports as the first that failed."""
    if isinstance(decisive, Exit):
        return None
    failed = [each for each in log.exits if each.source == decisive.source and each.code not in (0, ENDED_BY_LAUNCHER)]
    named = [each for each in failed if each.who.rank is not None or each.who.host is not None]
    return next((each for each in named if each.is_first), next(iter(named), None))


def _culprit(relation: Relation, who: Who, named: ToldProcess, found: Finding) -> Culprit | None:
    rank = who.rank if who.rank is not None else named.rank
    local = who.local_rank if who.local_rank is not None else named.local_rank
    host = who.host or named.host or found.where.host
    pid = named.pid if named.pid is not None else who.pid
    gpu = str(found.where.gpu) if found.where.gpu is not None else named.gpu
    text = _words(rank, local, pid, gpu)
    is_named = relation is Relation.FIRST and host == found.where.host
    words = " on ".join(each for each in (text, "" if is_named else host) if each)
    return Culprit(relation, words, rank, local, who.node_rank, host, pid, gpu) if words else None


def _words(rank: int | None, local: int | None, pid: int | None, gpu: str | None) -> str:
    if rank is not None:
        return f"rank {rank}"
    if local is not None:
        return f"local rank {local}"
    if pid is not None:
        return f"process {pid}"
    return "" if gpu is None else f"GPU {gpu}"
