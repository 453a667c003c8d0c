"""Lists, seconds and periods in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["joined", "listed", "period_text", "seconds_text"]

_TIME = re.compile(r"\d\d:\d\d:\d\d")
_DAY = re.compile(r"\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d")


def listed(items: Sequence[str], most: int = 4) -> str:
    """The first items, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def seconds_text(seconds: float) -> str:
    """`0.4 s`, `12 s`."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def joined(parts: Iterable[str], separator: str = " · ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)


def period_text(first: str, last: str) -> str:
    """`20:25:26 to 20:25:41`, with the days where they differ."""
    times, days = [_TIME.search(first), _TIME.search(last)], [_DAY.search(first), _DAY.search(last)]
    if times[0] is None or times[1] is None:
        return f"{first} to {last}"
    if days[0] is None or days[1] is None or days[0][0] == days[1][0]:
        return times[0][0] if times[0][0] == times[1][0] else f"{times[0][0]} to {times[1][0]}"
    return f"{days[0][0]} {times[0][0]} to {days[1][0]} {times[1][0]}"
