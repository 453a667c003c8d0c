"""The values of the user's variables when a rank calls a collective: a condition on one that differs makes the ranks diverge."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import frames_of_user, is_of_user

__all__ = ["look", "named"]

MOST_LOOKS = 300
MOST_AT_A_LINE = 12
"""Looks at one line: values that diverge do so in the first ones."""
MOST_FRAMES = 3
DEEPEST = 40
MOST_NAMES = 60
MOST_ELEMENTS = 4
LONGEST = 40

_looks: dict[tuple[str, int], int] = {}


def look() -> None:
    """Record the numbers, texts and small tensors in the user's frames of the call that is being recorded."""
    frames = _frames(sys._getframe(2))
    if not frames or sum(_looks.values()) >= MOST_LOOKS:
        return
    key = (frames[0].f_code.co_filename, frames[0].f_lineno)
    count = _looks[key] = _looks.get(key, 0) + 1
    if count > MOST_AT_A_LINE:
        return
    seen = [[f.f_code.co_filename, f.f_code.co_name, f.f_code.co_firstlineno, _values(f)] for f in frames]
    sets = sorted({name for f in frames for name in _sets(f)})
    if sets:
        channel().say("sets", names=sets, at=frames_of_user(sys._getframe(2)))
    channel().say("locals", place=list(key), count=count, frames=seen)


def named(word: str, frame: FrameType | None) -> list[int]:
    """The whole numbers of the user's frames whose names contain a word; also attributes of objects such as `args`."""
    found: set[int] = set()
    for each in _frames(frame):
        for name, value in list(each.f_locals.items())[:MOST_NAMES]:
            inner = vars(value).items() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
            for key, number in ((name, value), *list(inner)[:MOST_NAMES]):
                if word in key.lower() and type(number) is int and 0 < number < 100_000:
                    found.add(number)
    return sorted(found)[:20]


def _frames(frame: FrameType | None) -> list[FrameType]:
    found: list[FrameType] = []
    depth = 0
    while frame is not None and depth < DEEPEST and len(found) < MOST_FRAMES:
        if is_of_user(frame.f_code.co_filename):
            found.append(frame)
        frame, depth = frame.f_back, depth + 1
    return found


def _values(frame: FrameType) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in list(frame.f_locals.items())[:MOST_NAMES]:
        text = _text(value)
        if text is not None:
            found[name] = text
        elif _is_of_user(type(value)):
            own = list(getattr(value, "__dict__", {}).items())[:MOST_NAMES]
            found |= {f"{name}.{key}": text for key, each in own if (text := _text(each)) is not None}
    return found


def _sets(frame: FrameType) -> list[str]:
    """The names of variables that are sets of several texts: their order differs between processes."""
    found = []
    for name, value in list(frame.f_locals.items())[:MOST_NAMES]:
        own = list(getattr(value, "__dict__", {}).items())[:MOST_NAMES] if _is_of_user(type(value)) else []
        for key, each in ((name, value), *((f"{name}.{key}", each) for key, each in own)):
            if type(each) in (set, frozenset) and len(each) > 1 and all(isinstance(text, str) for text in each):
                found.append(key)
    return found


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_of_user(file)


def _text(value: Any) -> str | None:
    """A short text that is equal for equal values, None for what is not compared."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:LONGEST]
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), torch._C.DisableTorchFunction():
            is_small = type(value) is torch.Tensor and value.layout is torch.strided and value.numel() <= MOST_ELEMENTS
            return repr(value.detach().tolist())[:LONGEST] if is_small and value.device.type == "cpu" else None
    return None
