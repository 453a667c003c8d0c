"""LOG505: a person interrupted the job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import JobOutcome, Log
from ddpdoctor.findings import Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.interruption import INTERRUPT, SIGNALLED
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.headlines import headline, names_of, place_name, who
from ddpdoctor.rules.log.signatures import explained, finding_of

__all__: list[str] = []


@cause("LOG505", "interrupted-by-hand", Severity.NOTE, speaker=Speaker.PERSON, signatures=SIGNALLED)
def interrupted_by_hand(log: Log) -> Iterator[Finding]:
    """A person or a program interrupted the job with SIGINT, as Ctrl-C does.

    ## Why it matters
    Every rank prints a traceback that ends in `KeyboardInterrupt` at its current line, or loses the connection to a rank that
    ended a moment earlier: these messages are not failures. If the job was interrupted because it hung, they show where each
    rank waited.

    ## Fix
    Do nothing if you interrupted it. If the job hung, run `ddpdoctor hang PID` on the next one before you interrupt it.

    ## Example

        W1123 09:00:12.1 7021 torch/distributed/elastic/agent/server/api.py:719] Received 2 death signal, shutting down workers
        [rank1]: RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4711

    Rank 1 did not fail: a person pressed Ctrl-C, and rank 0 ended first. Before the next Ctrl-C, on each node:

        ddpdoctor hang
    """
    lines = matching_lines(log, SIGNALLED)
    title = "interrupted with SIGINT, as Ctrl-C does"
    if lines:
        yield finding_of(log, lines, title, blames_speaker=True)
        return
    raised = [t for t in log.tracebacks if t.exception == INTERRUPT]
    others = [t for t in log.tracebacks if t.exception != INTERRUPT and not t.is_summary]
    is_first = history_of(log).outcome is JobOutcome.INTERRUPTED
    if not raised or (not is_first and (others or explained(log, "cause", "umbrella"))):
        return  # the job had already failed when it was interrupted
    first = raised[0]
    ranks = tuple(sorted({each.who.rank for each in raised if each.who.rank is not None}))
    hosts = sorted({each.who.host for each in raised if each.who.host is not None})
    place = first.place
    at = f", {names_of(ranks[:1], ())} at {place_name(place.file, place.line)}" if place is not None else ""
    yield Finding(
        headline(who(ranks, hosts), title) + at,
        tuple(Evidence(log.place(each.source, each.number), INTERRUPT) for each in raised[:3]),
        where=Where(
            host=hosts[0] if len(hosts) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            file=log.sources[first.source].name if place is None else place.file,
            line=first.number if place is None else place.line,
        ),
        ranks=ranks,
    )
