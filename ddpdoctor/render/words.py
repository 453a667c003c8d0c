"""Counts and lists in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["counted", "listed", "seconds_text"]


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {_plural(noun)}"


def listed(items: Sequence[str], most: int = 4) -> str:
    """The first items, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def seconds_text(seconds: float) -> str:
    """`0.4 s`, `12 s`."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"


def joined(parts: Iterable[str], separator: str = " · ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)
