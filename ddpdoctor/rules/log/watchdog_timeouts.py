"""Servers and trainers whose own watchdog saw no progress and ended them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules.log.collective_names import ranks_named
from ddpdoctor.rules.log.signatures import finding_of

__all__ = ["WATCHDOGS", "stuck"]

WATCHDOGS = (r"[Ww]atchdog timeout \(",)
"""What they print before they end themselves and their ranks with SIGKILL."""
DECIDES = "`ddpdoctor hang`, or py-spy dump on each rank, while it hangs"


def stuck(log: Log) -> Iterator[Finding]:
    """Ranks that made no step for as long as their program allows; each of them says so, whoever it waited for."""
    lines = matching_lines(log, WATCHDOGS)
    if not lines or history_of(log).is_harmless(lines):
        return
    who = ranks_named(sorted({line.who.rank for line in lines if line.who.rank is not None})) or "a process"
    title = f"{who} stood still until the program's own watchdog ended it"
    found = finding_of(log, lines, title, f"Undetermined who hung first: {DECIDES}", blames_speaker=False)
    yield replace(found, ranks=(), where=replace(found.where, rank=None))
