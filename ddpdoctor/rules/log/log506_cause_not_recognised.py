"""LOG506: a log shows a failure that no rule explains: its lines are quoted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.log import EventKind, Exit, JobOutcome, Log, LogEvent, LogLine, Traceback, Who
from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.distances import LAST_WORDS_LINES
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_meaning import NCCL_READY, NCCL_RETURNED, gives_up, is_progress, says_end
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.headlines import headline, who
from ddpdoctor.rules.log.signatures import shortened
from ddpdoctor.rules.log.what_to_collect import what_next

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang

__all__: list[str] = []

QUOTED = 3
"""The number of last lines that are quoted."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """The last text of the process that failed first, and why it was chosen."""

    source: int
    number: int
    text: str
    who: Who
    lines: tuple[LogLine, ...]
    chosen: str
    raised: Traceback | None = None
    is_certain: bool = True
    """Whether the text shows that the process failed, not only that it ends with an error."""


@cause("LOG506", "cause-not-recognised", Severity.ERROR, stage=CausalStage.TERMINATED, is_last_resort=True)
def cause_not_recognised(log: Log) -> Iterator[Finding]:
    """The job failed, and ddpdoctor does not recognize the cause.

    ## Why it matters
    The log shows that the job failed, but no known cause fits. The quoted lines are the last ones of the process that failed
    first; they are evidence, not a diagnosis.

    ## Fix
    Read the quoted lines in the log. Then collect what the finding asks for, and run `ddpdoctor triage` on all of it: the
    complete output of every rank decides in most cases.

    ## Example

        SystemExit: 3

    The script ended itself with exit code 3, and its log does not contain the reason.

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        torchrun --nproc-per-node 8 --log-dir logs --tee 3 train.py; ddpdoctor triage logs
    """
    if history_of(log).outcome is JobOutcome.INTERRUPTED:
        return
    words = _first_failure(log) or _giving_up(log)
    if words is None:
        return
    ranks = (words.who.rank,) if words.who.rank is not None else ()
    hosts = (words.who.host,) if words.who.host is not None else ()
    quote = shortened(words.text.strip())
    place = words.raised.place if words.raised is not None else None
    yield Finding(
        _headline(words, ranks, hosts, quote),
        tuple(Evidence(log.place(each.source, each.number), shortened(each.text.strip())) for each in words.lines),
        fix=what_next(log, words.text, words.raised),
        why=f"No known cause fits. The line is quoted because {words.chosen}.",
        where=Where(
            host=words.who.host,
            rank=words.who.rank,
            local_rank=words.who.local_rank,
            file=log.sources[words.source].name if place is None else place.file,
            line=words.number if place is None else place.line,
        ),
        ranks=ranks,
        quote=quote,
        severity=None if words.is_certain else Severity.WARNING,
        certainty=Certainty.CANDIDATES,
    )


@cause_not_recognised.look
def unhealthy(hang: Hang) -> Iterator[Finding]:
    """Ranks whose backend torch's own health check calls unhealthy, without the reason."""
    from ddpdoctor.facts.gaps import not_here

    if not hang.debug_answers:
        not_here("no answers to torch's debug server")
    for each in (answer for answer in hang.debug_answers if answer.trouble == "unhealthy"):
        yield Finding(
            f"rank {each.rank} is unhealthy, says torch's debug server; the reason is not in this file",
            (Evidence(f"{each.source}:{each.line}", each.text, '"healthy": true'),),
            fix="Collect the page /stacks of the debug server, the Flight Recorder dumps and the log of this rank; then run "
            "`ddpdoctor triage` on all of them",
            where=Where(host=each.host or None, rank=each.rank, file=each.source, line=each.line),
            ranks=(each.rank,),
            quote=each.text,
            certainty=Certainty.LIKELY,
        )


def _headline(words: LastWords, ranks: tuple[int, ...], hosts: tuple[str, ...], quote: str) -> str:
    speaker = who(ranks, hosts)
    what = "failed" if words.is_certain else "the output ends with an error"
    what = f"{what}; cause not recognized"
    return headline(speaker, what if speaker or not words.is_certain else f"the job {what}", quote)


def _first_failure(log: Log) -> LastWords | None:
    """The first event that ended a process; an exception is preferred to a line, and a line to an exit code."""
    failures = [event for process in history_of(log).processes for event in process.failures]
    events = [event for event in failures if not _got_ready(log, event)]
    order = (EventKind.EXCEPTION, EventKind.FAILURE, EventKind.PEER_LOST, EventKind.EXIT)
    first = min(
        events, key=lambda event: (order.index(event.kind), event.printed.source, event.printed.number), default=None
    )
    return None if first is None else _words(log, first)


def _got_ready(log: Log, event: LogEvent) -> bool:
    """Whether NCCL returned an error but created its communicator later."""
    line = event.printed
    if not isinstance(line, LogLine) or NCCL_RETURNED.search(line.text) is None:
        return False
    return any(
        each.source == line.source and each.number > line.number and NCCL_READY.search(each.text) for each in log.tails
    )


def _words(log: Log, event: LogEvent) -> LastWords:
    printed = event.printed
    before = _lines_before(log, printed)
    if isinstance(printed, Traceback):
        text = (printed.exception or "an exception") + (f": {printed.message}" if printed.message else "")
        own = LogLine(printed.source, printed.number, text, printed.who)
        chosen = "it is the first exception that ended a process"
        return LastWords(printed.source, printed.number, text, printed.who, (*before, own), chosen, printed)
    if isinstance(printed, Exit):
        text = f"exit code {printed.code}"
        own = LogLine(printed.source, printed.number, text, printed.who)
        chosen = "this process is the first that its launcher reports as failed"
        return LastWords(printed.source, printed.number, text, printed.who, (*before, own), chosen)
    chosen = "it is the first line that reports a failed process, and no progress follows"
    return LastWords(printed.source, printed.number, printed.text, printed.who, (*before, printed), chosen)


def _giving_up(log: Log) -> LastWords | None:
    """The first of the last lines that gives up, with no progress after it."""
    for source in range(len(log.sources)):
        last = [line for line in log.tails if line.source == source][-LAST_WORDS_LINES:]
        words = next((line for line in last if gives_up(line) and not _continues(last, line)), None)
        if words is not None:
            chosen = "the output ends there with an error"
            lines = (*_lines_before(log, words), words)
            is_certain = says_end(words)
            return LastWords(source, words.number, words.text, words.who, lines, chosen, is_certain=is_certain)
    return None


def _continues(last: list[LogLine], line: LogLine) -> bool:
    return any(each.number > line.number and is_progress(each) for each in last)


def _lines_before(log: Log, printed: LogLine | Traceback | Exit) -> tuple[LogLine, ...]:
    """The lines of the same process directly before, as far as they are kept."""
    begin = printed.begin or printed.number if isinstance(printed, Traceback) else printed.number
    own = [
        line
        for line in log.tails
        if line.source == printed.source and line.number < begin and line.who.may_be(printed.who)
    ]
    return tuple(own[-(QUOTED - 1) :])
