"""The advice that NCCL 2.30 and newer prints after a warning: `HINT: In many cases this error …`."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.facts.nccl_line import nccl_line
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import HINT_LINES

__all__ = ["hint_of", "hints_after"]


def hints_after(log: Log, lines: Sequence[LogLine]) -> list[LogLine]:
    """The hints that the process of a warning printed after it, each text once."""
    found: dict[str, LogLine] = {}
    for hint, _ in context_lines(log, "nccl_hint"):
        if any(_follows(hint, line) for line in lines):
            found.setdefault(hint_of(hint), hint)
    return list(found.values())


def hint_of(line: LogLine) -> str:
    """What a hint says, without the word."""
    parsed = nccl_line(line.text)
    return (parsed.hint if parsed is not None else "") or line.text.partition("HINT: ")[2].strip()


def _follows(hint: LogLine, line: LogLine) -> bool:
    is_near = hint.source == line.source and 0 < hint.number - line.number <= HINT_LINES
    return is_near and hint.who.pid == line.who.pid and hint.who.host == line.who.host
