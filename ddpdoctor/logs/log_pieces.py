"""The sources of a log in pieces, each of one launch, and what the text of a piece says of its job."""

from __future__ import annotations

import bisect
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from ddpdoctor.facts.log import Exit, InputKind, JobMark, Log, LogLine, MarkKind, Traceback
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.job_names import PathEvidence, path_evidence
from ddpdoctor.logs.kernel_log import KernelTime, time_of

__all__ = ["JOB_KINDS", "LogPiece", "part_of", "pieces_of", "time_in"]

JOB_KINDS = (InputKind.TEXT, InputKind.ERROR_FILE)
"""What a process, a launcher or a scheduler writes itself; everything else is about a job."""
_GLOG = re.compile(r"[EWIF](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)")
_ZONE = re.compile(r":\d\d(?:[.,]\d+)? ?(?:Z|UTC|[+-]\d\d:?\d\d)$")
_BANNER = "torchrun"
_LINES_ABOVE_BANNER = 2
"""torchrun's banner begins with an empty line and a line of stars."""
_ENDED_BY_SLURM = re.compile(r"\*\*\* JOB \S+ ON ")

Printed = LogLine | Traceback | Exit


@dataclass(slots=True)
class LogPiece:
    """The lines `begin` to `end` of a source, all of one launch. `number` counts its pieces from 1, 0 if it is whole.

    `ids` are those of its path and its text. `pids` are, by rank, the (host, process id) that launchers say; `times` are the
    first and the last by clock.
    """

    source: int
    begin: int
    end: int | None
    number: int
    path: PathEvidence
    kind: InputKind
    ids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    pids: dict[int, set[tuple[str | None, int]]] = field(default_factory=lambda: defaultdict(set))
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    is_launch: bool = False
    """A launcher says in it that it starts ranks, or how they ended."""
    tail: tuple[LogLine, ...] | None = None
    """Its last lines, where it does not go to the end of its source."""

    def holds(self, number: int) -> bool:
        """Whether a line is of this piece."""
        return number >= self.begin and (self.end is None or number <= self.end)

    def take(self, each: Printed) -> None:
        """What something that was printed says of the job."""
        who = each.who
        if who.rank is not None:
            self.ranks.add(who.rank)
        if who.host is not None:
            self.hosts.add(who.host)
        self.is_launch = self.is_launch or isinstance(each, Exit) or (isinstance(each, Traceback) and each.is_summary)
        if isinstance(each, Exit) and who.rank is not None and who.pid is not None:
            self.pids[who.rank].add((who.host, who.pid))
        stamp = time_in(each)
        if stamp is not None:
            first, last = self.times.get(stamp.clock, (stamp.seconds, stamp.seconds))
            self.times[stamp.clock] = (min(first, stamp.seconds), max(last, stamp.seconds))


def time_in(each: Printed) -> KernelTime | None:
    """When something was printed, as its prefix, its logger or the launcher says."""
    if each.time is not None:
        return _time_of(each.time.replace("_", "T", 1))
    return _time_of(each.text[:20]) if isinstance(each, LogLine) else None


@functools.lru_cache(1 << 12)
def _time_of(text: str) -> KernelTime | None:
    glog = _GLOG.match(text)
    if glog is not None:
        text = f"2000-{glog['month']}-{glog['day']}T{glog['time']}"
        stamp = time_of(text)
        return None if stamp is None else KernelTime(stamp.seconds, "yearless")
    stamp = time_of(text + " ")
    if stamp is None or stamp.clock == "start":
        return None
    # Files of one job may be written in different zones: a time with a zone is not compared with one without.
    return KernelTime(stamp.seconds, f"zoned {stamp.clock}") if _ZONE.search(text) else stamp


def pieces_of(log: Log, above: int) -> list[LogPiece]:
    """The pieces of all sources, in order, with what their text says."""
    pieces: list[list[LogPiece]] = []
    marks = _by_source(log.marks)
    ends = _Ends(log) if any(_starts(each) > 1 for each in marks.values()) else None
    for index, source in enumerate(log.sources):
        path = path_evidence(source.name, above)
        pieces.append(list(_cut(index, source.kind, path, marks.get(index, []), ends)))
    for each in (*log.heads, *log.spoken, *log.tails):
        part_of(pieces[each.source], each.number).take(each)
    for mark in log.marks:
        piece = part_of(pieces[mark.source], mark.number)
        piece.is_launch = piece.is_launch or mark.kind is MarkKind.START
        for kind, value in mark.ids:
            if kind not in dict(piece.path.ids):
                piece.ids[_kind_of_id(kind, value)].add(value)
    for group in pieces:
        for piece in group:
            who = log.sources[piece.source].who
            if who.rank is not None:
                piece.ranks.add(who.rank)
            if who.host is not None:
                piece.hosts.add(who.host)
    for xid in log.xids:
        if xid.source is not None and xid.host is not None:
            pieces[xid.source][0].hosts.add(xid.host)
    return [piece for group in pieces for piece in group]


def part_of(pieces: Sequence[LogPiece], number: int) -> LogPiece:
    """The piece of one source that holds a line."""
    return pieces[max(0, bisect.bisect_right([piece.begin for piece in pieces], number) - 1)]


def _kind_of_id(kind: str, value: str) -> str:
    """Slurm gives the tasks of an array a second number, which is not the job's own."""
    return "array" if kind == "slurm" and "_" in value else kind


def _by_source(marks: Iterable[JobMark]) -> dict[int, list[JobMark]]:
    found: dict[int, list[JobMark]] = defaultdict(list)
    for mark in sorted(marks, key=lambda each: (each.source, each.number)):
        found[mark.source].append(mark)
    return found


def _starts(marks: Iterable[JobMark]) -> int:
    return sum(mark.kind is MarkKind.START for mark in marks)


def _cut(
    source: int, kind: InputKind, path: PathEvidence, marks: Sequence[JobMark], ends: _Ends | None
) -> Iterator[LogPiece]:
    """The pieces of one source: a new one begins with another id, or where a launcher starts after all before it ended."""
    cuts: list[JobMark] = []
    begin = 1
    starts: Counter[str] = Counter()
    ids: dict[str, str] = {}
    for place, mark in enumerate(marks):
        is_other = any(
            name in ids and ids[name] != value and not _comes_again((name, ids[name]), marks[place:])
            for name, value in mark.ids
        )
        is_start = mark.kind is MarkKind.START
        launchers = max(starts.values(), default=0)
        if is_other or (is_start and ends is not None and ends.are_over(source, begin, mark.number, launchers)):
            cuts.append(mark)
            begin, ids = mark.number, {}
            starts.clear()
        starts[mark.by] += is_start
        ids.update(mark.ids)
    begins = [1, *(max(2, mark.number - (_LINES_ABOVE_BANNER if mark.by == _BANNER else 0)) for mark in cuts)]
    for i, begin in enumerate(begins):
        piece = LogPiece(source, begin, None, i + 1 if cuts else 0, path, kind)
        for name, value in path.ids:
            piece.ids[name].add(value)
        if i < len(cuts):
            piece.end = begins[i + 1] - 1
            piece.tail = tuple(line for line in cuts[i].tail if piece.begin <= line.number <= piece.end)
        yield piece


def _comes_again(pair: tuple[str, str], marks: Iterable[JobMark]) -> bool:
    return any(pair in mark.ids for mark in marks)


class _Ends:
    """Where launchers say that they ended, by source."""

    def __init__(self, log: Log) -> None:
        self._launchers: dict[int, list[int]] = defaultdict(list)
        self._jobs: dict[int, list[int]] = defaultdict(list)
        for each in log.tracebacks:
            if each.is_summary:
                self._launchers[each.source].append(each.number)
        for line, _ in context_lines(log, "group_finished"):
            self._launchers[line.source].append(line.number)
        for line in log.lines:
            if _ENDED_BY_SLURM.search(line.text):
                self._jobs[line.source].append(line.number)
        for line, _ in context_lines(log, "finished"):
            self._jobs[line.source].append(line.number)

    def are_over(self, source: int, begin: int, number: int, starts: int) -> bool:
        """Whether all `starts` launchers between two lines ended there."""
        if not starts:
            return False
        own = [each for each in self._launchers[source] if begin <= each < number]
        return len(own) >= starts or any(begin <= each < number for each in self._jobs[source])
