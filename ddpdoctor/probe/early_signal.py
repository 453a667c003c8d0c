"""A termination signal during a rank's start: kept for its session, which informs the other ranks."""

from __future__ import annotations

from types import FrameType

__all__ = ["early", "keep"]

early: list[int] = []


def keep(number: int, frame: FrameType | None) -> None:
    """The signal handler until the session installs its own."""
    early.append(number)
