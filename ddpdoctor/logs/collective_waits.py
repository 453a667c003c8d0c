"""Who waited in a collective for whom: watchdogs' and Gloo's time-outs compared over all ranks."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine, TracebackFrame, Who
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import CALL_SITE_LINES
from ddpdoctor.logs.history import history_of

__all__ = ["CollectiveWait", "Participant", "collective_waits", "participants", "ranks_behind", "ranks_named_missing"]

_WORK = re.compile(r"WorkNCCL\((?P<body>[^()]{0,600}(?:\(ms\)[^()]{0,300})?)\)")
_FIELD = re.compile(r"\b(?P<name>\w{1,60})=(?P<value>\[[\d, ]{0,500}\]|\w+)")
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\w+)")
_OF_WORK = re.compile(
    rf"{_GROUP.pattern}\b[^\][]{{0,200}}\] {{1,9}}(?:failure detected|Exception \(either|Timeout at NCCL work)"
)
"""The group of the time-out. That another rank timed out is reported in the default group."""
_NAMED = (
    re.compile(r"\bRanks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier"),
    re.compile(r"\[(?P<ranks>\d+(?:, \d+)*)\] finished collective #\d+, but didn't join collective"),
    re.compile(r"ranks? \[(?P<ranks>\d+(?:, \d+)*)\] (?:are|is) the lagging rank"),
)
_FROM = re.compile(r"reached monitoredBarrier, but received errors while waiting for send/recv from rank (?P<rank>\d+)")
"""What the other ranks print: rank 0 runs the barrier, and names the missing rank unless it is missing itself."""
TIMED_OUT = (
    "milliseconds before timing out",
    "caught collective operation timeout",
    "Timed out waiting ",
    "Timeout at NCCL work: ",
)
_NUMBER = re.compile(r"Timeout at NCCL work: (?P<seq>\d+)")
_GATHERED = re.compile(r"OpType=_?ALLGATHER\w*, NumelIn=(?P<few>\d+), NumelOut=(?P<more>\d+)")
_SCATTERED = re.compile(r"OpType=_?REDUCE_SCATTER\w*, NumelIn=(?P<more>\d+), NumelOut=(?P<few>\d+)")
_REST = re.compile(r"[^\[]{0,40}\(ms\)=\d+\) ran for ")
"""The rest of a line that a terminal broke."""
STALLED = "by subset of ranks and are waiting for remainder"
"""Horovod's words above the tensors that some ranks did not submit."""


@dataclass(frozen=True, slots=True)
class CollectiveWait:
    """A rank that gave up waiting. What its line does not tell is None; `place` is where its script called the collective."""

    line: LogLine
    who: Who
    seq: int | None = None
    op: str | None = None
    size: str | None = None
    group: str | None = None
    place: TracebackFrame | None = None


@dataclass(frozen=True, slots=True)
class Participant:
    """One rank, or, where ranks are not known, one file or node. `who` is what is known of it."""

    name: str
    who: Who
    sources: tuple[int, ...]


def collective_waits(log: Log) -> list[CollectiveWait]:
    """The first time-out of each rank, in the order of the log."""
    found: dict[object, CollectiveWait] = {}
    groups = {line.who.rank: match["group"] for line in log.lines if (match := _GROUP.search(line.text)) is not None}
    groups |= {line.who.rank: match["group"] for line in log.lines if (match := _OF_WORK.search(line.text)) is not None}
    timed_out = {(line.source, line.number) for line in log.lines if any(words in line.text for words in TIMED_OUT)}
    for line in log.lines:
        place = (line.source, line.number)
        if place not in timed_out or (_REST.match(line.text) and (line.source, line.number - 1) in timed_out):
            continue
        work = _WORK.search(line.text)
        fields = {m["name"]: m["value"] for m in _FIELD.finditer(work["body"])} if work is not None else {}
        number = _NUMBER.search(line.text)
        seq = fields.get("SeqNum", number["seq"] if number is not None else "")
        wait = CollectiveWait(
            line,
            line.who,
            int(seq) if seq.isdigit() else None,
            fields.get("OpType"),
            fields.get("NumelIn") or fields.get("TensorShape"),
            groups.get(line.who.rank),
            _place(log, line),
        )
        found.setdefault(_key(line), wait)
    return list(found.values())


def ranks_named_missing(log: Log) -> tuple[tuple[int, ...], LogLine | None]:
    """The ranks that a line names as missing from a collective, and that line."""
    ranks: set[int] = set()
    naming_line = None
    for line in log.lines:
        for known in _NAMED:
            for match in known.finditer(line.text):
                ranks |= {int(rank) for rank in match["ranks"].split(", ")}
                naming_line = naming_line or line
    stalled = [line for line in log.lines if STALLED in line.text]
    if stalled:
        ranks |= {
            int(rank) for _, found in context_lines(log, "stalled_ranks") for rank in re.findall(r"\d+", found["ranks"])
        }
        naming_line = naming_line or stalled[0]
        ranks = ranks or _not_ready(log)
    for line in log.lines if not ranks else ():
        if (keeper := _FROM.search(line.text)) is not None:
            return (int(keeper["rank"]),), line
    return tuple(sorted(ranks)), naming_line


def _not_ready(log: Log) -> set[int]:
    """The ranks that are not among those that Horovod calls ready; above the highest of these no line names any."""
    found = [{int(rank) for rank in re.findall(r"\d+", m["ranks"])} for _, m in context_lines(log, "ready_ranks")]
    return {rank for ready in found for rank in range(log.world_size or max(ready) + 1) if rank not in ready}


def ranks_behind(log: Log, waited: list[CollectiveWait]) -> set[int]:
    """The ranks whose last collective comes before the one in which all others timed out, as their own watchdogs say."""
    places = {(wait.group, wait.seq) for wait in waited}
    if len(places) != 1 or None in places.copy().pop():
        return set()
    group, seq = places.pop()
    last: dict[int, int] = {}
    for line, found in context_lines(log, "progress"):
        of = _GROUP.search(line.text)
        if line.who.rank is not None and of is not None and of["group"] == group:
            last[line.who.rank] = max(last.get(line.who.rank, -1), int(found["enqueued"]))
    return {rank for rank, number in last.items() if number < (seq or 0)}


def participants(log: Log) -> list[Participant]:
    """All that printed anything: ranks where every file's rank is known, else files."""
    by_source: dict[int, set[int]] = {index: set() for index, source in enumerate(log.sources) if source.lines}
    whos: dict[int, Who] = {}
    for process in history_of(log).processes:
        if process.rank is not None:
            by_source.setdefault(process.source, set()).add(process.rank)
            whos.setdefault(process.rank, process.who)
    if len(by_source) < 2:
        if len(whos) == 1 and log.world_size is None:
            return [
                Participant(f"rank {rank}", who, tuple(by_source)) for rank, who in whos.items()
            ]  # an excerpt of one rank
        known = range(max((log.world_size or 0, _gathered(log), *(rank + 1 for rank in whos))))  # ranks below another's
        return [Participant(f"rank {rank}", whos.get(rank, Who(rank=rank)), tuple(by_source)) for rank in known]
    found = {rank: Participant(f"rank {rank}", who, ()) for rank, who in whos.items()}
    nameless = [source for source, ranks in by_source.items() if not ranks]
    lost = sorted(set(range(max(log.world_size or 0, len(by_source)))) - set(whos))
    for source in nameless:
        who = _of_source(log, source)
        rank = lost[0] if len(lost) == len(nameless) == 1 else None
        name = f"rank {rank}" if rank is not None else (who.host or log.sources[source].name)
        found[-1 - source] = Participant(name, Who(rank=rank, host=who.host, node_rank=who.node_rank), (source,))
    return [found[key] for key in sorted(found)]


def _gathered(log: Log) -> int:
    """So many ranks at least took part in a collective whose output is a multiple of its input; 0 where no line shows it."""
    sizes = [(int(m["more"]), int(m["few"])) for line in log.lines for m in _GATHERED.finditer(line.text)]
    sizes += [(int(m["more"]), int(m["few"])) for line in log.lines for m in _SCATTERED.finditer(line.text)]
    return max((more // few for more, few in sizes if few and not more % few), default=0)


def _of_source(log: Log, source: int) -> Who:
    own = next((line.who for line in log.tails if line.source == source), None)
    return own or log.sources[source].who


def _key(line: LogLine) -> object:
    return line.who.rank if line.who.rank is not None else (line.source, line.who.host, line.who.task)


def _place(log: Log, line: LogLine) -> TracebackFrame | None:
    own = [each for each in log.tracebacks if each.source == line.source and each.who == line.who]
    near = [each for each in own if 0 <= line.number - each.number < CALL_SITE_LINES]
    return near[-1].place if near else None
