"""What one reader read, kept for the next: a value holds wherever all that it leans on is the same.

Each rank of each rehearsal has a reader of its own, and most of what they read is the same for all: a path, a backend, a
condition on the configuration. A value notes what it leans on while it is read. One that leans on the arguments of a call
is kept for calls with the same expressions; one that leans on what was read just before, as a limit of one question, is not.
"""

from __future__ import annotations

import ast
from enum import Enum
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import Asked, Chooser, Terms
from ddpdoctor.scripts.interpreter.simulated_job import Frame, Job, Later, Place

__all__ = ["Lean", "Read", "keep", "recall"]

MAX_KEPT = 8
"""Values of one expression, for other answers to what was asked."""


class Lean(Enum):
    """What a value depends on beside its text and what was chosen."""

    PLACE = 1
    """The rank that reads it."""
    JOB = 2
    """The job that the rank is in."""
    MOMENT = 3
    """What was read just before: it holds for this question only."""


class Read(NamedTuple):
    """A value and what it leans on: a `Lean`, an `Asked`, or a key of what is being read, a frame or a cycle."""

    value: object
    leans: frozenset[object]


_PLAIN = (int, str, type(None))


class Shelf:
    """What is kept: the values of an expression, with the rank or job and the choices that they hold for."""

    def __init__(self) -> None:
        self.kept: dict[ast.expr, list[tuple[Place | Job | None, Terms, Read]]] = {}


class Context(NamedTuple):
    """Where expressions of a function are read: what is kept whatever its parameters hold, and what only where they
    hold the same expressions of the same callers, or in this frame alone where one holds something else; `frames` are this
    one and those of the callers.
    """

    anyhow: Shelf
    here: Shelf
    is_told: bool
    frames: frozenset[Frame]


def _context(trusting: bool, chooser: Chooser | None, frame: Frame) -> Context:
    if frame.context is None:
        shelves: dict[object, Shelf] = frame.module.cache.setdefault("read", {})
        given: set[object] = set()
        frames = {frame}
        is_told = True
        for name, value in frame.bound.items():
            if isinstance(value, Later):
                caller = _context(trusting, chooser, value.frame)
                frames |= caller.frames
                given.add((name, value.node, caller.here))
                is_told &= caller.is_told
            else:
                is_told &= isinstance(value, _PLAIN)
                given.add((name, type(value), value if is_told else None))
        key = (trusting, chooser is None, frame.function)
        anyhow = shelves.setdefault((*key, frozenset(frame.bound)), Shelf())
        here = shelves.setdefault((*key, frozenset(given)), Shelf()) if is_told else Shelf()
        frame.context = Context(anyhow, here, is_told, frozenset(frames))
    return frame.context


def recall(trusting: bool, place: Place, chooser: Chooser | None, node: ast.expr, frame: Frame) -> Read | None:
    """What another reader found, when this one would find the same."""
    context = _context(trusting, chooser, frame)
    for shelf in (context.anyhow, context.here):
        for at, terms, read in shelf.kept.get(node, ()):
            if (at is None or at is place or at is place.job) and (chooser is None or chooser.agrees(terms)):
                return read if shelf is context.anyhow else Read(read.value, read.leans | context.frames)
    return None


def keep(trusting: bool, place: Place, chooser: Chooser | None, node: ast.expr, frame: Frame, read: Read) -> None:
    """Keep a value for other readers, if it leans on nothing that only this one has."""
    context = _context(trusting, chooser, frame)
    asked = [each for each in read.leans if isinstance(each, Asked)]
    others = read.leans.difference(asked, (Lean.PLACE, Lean.JOB))
    if not others <= context.frames:
        return
    kept = (context.here if others else context.anyhow).kept.setdefault(node, [])
    if len(kept) >= MAX_KEPT:
        del kept[0]
    at = place if Lean.PLACE in read.leans else place.job if Lean.JOB in read.leans else None
    kept.append((at, Terms.of(asked), Read(read.value, read.leans - others)))
