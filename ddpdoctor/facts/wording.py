"""Counts with their nouns."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`; a noun of several words is counted by its last one."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
