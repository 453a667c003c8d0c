"""A request to end that comes while a rank still starts: kept for its session, which tells the others of it."""

from __future__ import annotations

from types import FrameType

__all__ = ["early", "keep"]

early: list[int] = []


def keep(number: int, frame: FrameType | None) -> None:
    """The handler of the signal until the session has one."""
    early.append(number)
