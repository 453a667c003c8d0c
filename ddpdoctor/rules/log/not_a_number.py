"""Jobs that end themselves because a loss or a gradient is not a number, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.rules.log.signatures import finding_of

__all__ = ["last_losses", "no_number"]

_STEP = re.compile(r"\s*(?:\[[^\]]*\] ?)?iteration +\d+/")


_LOSS = re.compile(
    r"(?<![\w-])(?:train[_/]|lm )?loss['\"]?(?:\s*[:=|]\s*|\s+)['\"]?(?P<value>[-+]?(?:\d[\d.eE+-]*|nan|inf))(?![\w.])",
    re.IGNORECASE,
)
FEWEST_LOSSES = 2
"""One loss that is not a number may be a step that the scaler of fp16 skips."""


def last_losses(log: Log) -> Iterator[Finding]:
    """The last steps of a log whose losses are all not numbers, where nothing else says why it ends."""
    if log.tracebacks or log.exits or log.unfinished:
        return
    found = [(line, shown["value"].lower()) for line in log.tails if (shown := _LOSS.search(line.text)) is not None]
    numbers = [at for at, (_, value) in enumerate(found) if "n" not in value]
    lines = [line for line, _ in found[numbers[-1] + 1 if numbers else 0 :]]
    if len(lines) >= FEWEST_LOSSES:
        title = "The loss is not a number in the last steps, and the training continues"
        yield finding_of(log, lines, title, blames_speaker=False)


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
