"""Jobs that end themselves because a loss or a gradient is not a number, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.rules.log.signatures import finding_of

__all__ = ["no_number"]

_STEP = re.compile(r"\s*(?:\[[^\]]*\] ?)?iteration +\d+/")


def no_number(log: Log) -> Iterator[Finding]:
    """The lines in which a job reports it, if the job did not continue."""
    lines = [line for line, _ in context_lines(log, "no_number")]
    if lines and not history_of(log).is_harmless(lines) and not _continues(log, lines[-1]):
        title = "The loss or a gradient became NaN or infinite, and the job stopped"
        yield finding_of(log, lines, title, blames_speaker=True)


def _continues(log: Log, line: LogLine) -> bool:
    """Whether the trainer's iterations continue after the line: it repeated the doubtful one."""
    after = max(line.number, line.last)
    return any(other.source == line.source and other.number > after and _STEP.match(other.text) for other in log.tails)
