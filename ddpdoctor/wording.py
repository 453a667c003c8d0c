"""Counts with their nouns."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 batches`, `2 entries`; a noun of several words is counted by its last one."""
    return f"{number} {noun}" if number == 1 else f"{number} {_plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
