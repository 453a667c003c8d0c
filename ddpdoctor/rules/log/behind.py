"""LOG007, SCRIPT020: lines that mean what they seem to only where nothing else was told before them."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log, LogLine, Traceback
from ddpdoctor.findings import Finding
from ddpdoctor.logs.rendezvous_lines import failed_connections
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.signatures import as_signed, explained, matching

__all__: list[str] = []

NOT_REACHED = (r"\bconnect\(\) timed out\.",)
LOST = ("RendezvousConnectionError",)
ABORTED = (r"terminate called without an active exception",)


@in_logs("LOG007")
def store_lost(log: Log) -> Iterator[Finding]:
    """Agents say the same of a store that they never reached, which NET003 tells of."""
    lost = matching(log, LOST)
    for found in as_signed("LOG007", log):
        only_agents = all(
            any(each.path == log.place(line.source, line.number) for line in lost) for each in found.evidence
        )
        if not (only_agents and (failed_connections(log) or matching(log, NOT_REACHED))):
            yield found


@in_logs("SCRIPT020")
def not_destroyed(log: Log) -> Iterator[Finding]:
    """C++ ends in this way after any error as well: it is about the end of the script only where none was told before."""
    for found in as_signed("SCRIPT020", log):
        if not all(_is_after_an_error(log, line) for line in matching(log, ABORTED)):
            yield found


def _is_after_an_error(log: Log, line: LogLine) -> bool:
    told: list[LogLine | Traceback] = [*explained(log, "cause", "umbrella", "consequence"), *log.tracebacks]
    return any(
        each.source == line.source and each.number < line.number and (each.who.rank in (None, line.who.rank))
        for each in told
    )
