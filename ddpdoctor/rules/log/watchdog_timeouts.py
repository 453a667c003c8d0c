"""Servers and trainers that their own watchdog ended because they made no progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules.log.signatures import finding_of

__all__ = ["WATCHDOGS", "stuck"]

WATCHDOGS = (r"[Ww]atchdog timeout \(",)
"""What they print before they kill themselves and their ranks with SIGKILL."""
WHO_HUNG = "Unknown which rank hung first: run `ddpdoctor hang` on every node while the next run hangs to decide"


def stuck(log: Log) -> Iterator[Finding]:
    """Ranks that made no progress for as long as their program allows; the victims of the stuck rank print the same."""
    lines = matching_lines(log, WATCHDOGS)
    if not lines or history_of(log).is_harmless(lines):
        return
    found = finding_of(log, lines, "stuck until the program's own watchdog ended it", WHO_HUNG, blames_speaker=False)
    yield replace(found, ranks=(), where=replace(found.where, rank=None))
