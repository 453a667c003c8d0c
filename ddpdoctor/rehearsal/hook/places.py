"""Where in the user's code a call comes from."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FrameType

__all__ = ["OWN", "Place", "deepest_of_user", "frames_of_user", "is_called_by_library", "is_of_user", "place"]

Place = tuple[str, int, str]
"""File, line (from 1), and function."""

MOST_FRAMES = 5
DEEPEST = 200
OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)


class Depth:
    """How near a file is to the user's own code."""

    SKIPPED = 0
    LIBRARY = 1
    USER = 2


@functools.lru_cache(maxsize=4096)
def _depth(file: str) -> int:
    if file.startswith(("<", OWN)):
        return Depth.SKIPPED
    parts = file.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return Depth.SKIPPED if "torch" in parts else Depth.LIBRARY
    return Depth.SKIPPED if file.startswith(_LIBRARIES) else Depth.USER


def is_of_user(file: str) -> bool:
    """Whether a file is the user's own code."""
    return _depth(file) == Depth.USER


def frames_of_user(frame: FrameType | None = None) -> list[Place]:
    """The frames of the user's own files, innermost first; without any, the innermost one of a library."""
    walked = frame or sys._getframe(1)
    found: list[Place] = []
    depth = 0
    while walked is not None and depth < DEEPEST:
        found.append((walked.f_code.co_filename, walked.f_lineno, walked.f_code.co_name))
        walked, depth = walked.f_back, depth + 1  # type: ignore[assignment]
    return deepest_of_user(found)


def deepest_of_user(places: list[Place]) -> list[Place]:
    """Those of these frames, innermost first, that are the user's own; without any, the innermost one of a library."""
    own = [each for each in places if _depth(each[0]) == Depth.USER][:MOST_FRAMES]
    return own or [each for each in places if _depth(each[0]) == Depth.LIBRARY][:1]


def is_called_by_library() -> bool:
    """Whether the nearest caller outside of torch and Python is an installed package, not the user's own code."""
    walked: FrameType | None = sys._getframe(1)
    while walked is not None:
        depth = _depth(walked.f_code.co_filename)
        if depth != Depth.SKIPPED:
            return depth == Depth.LIBRARY
        walked = walked.f_back
    return False


def place() -> list[Place]:
    """The user's frames of the call that is being recorded."""
    return frames_of_user(sys._getframe(2))
