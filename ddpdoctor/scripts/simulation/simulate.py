"""Rehearses statements: what each rank does, in its order, through branches, loops, early exits and calls.

A `Rehearsal` is one way through a function with all ranks side by side: conditions that the text decides go each rank's
own way, and what it does not tell is chosen once for all of them. Conditions on a rank's own data are taken by one rank
and not by the others when `data` asks for it. A rehearsal that met a condition which may differ between ranks in an unknown
way, around something that matters, is `open`: nothing can be said of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddpdoctor.scripts.interpreter.branch_oracle import Choices, Chooser
from ddpdoctor.scripts.interpreter.simulated_job import Frame, Place
from ddpdoctor.scripts.interpreter.values import Reader
from ddpdoctor.scripts.simulation.communication_reach import Matters
from ddpdoctor.scripts.simulation.rank_executor import Walk
from ddpdoctor.scripts.simulation.trace import Event, Rehearsal, Track
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["rehearse"]

MAX_RUNS = 12
MAX_ATTEMPTS = 3
MAX_STATEMENTS = 3000
"""Statements that all ways through one root may take together; a root that takes more is left alone."""


class _Scene(NamedTuple):
    """What is rehearsed: a root, by these ranks."""

    module: Module
    root: Function | ast.Module
    places: tuple[Place, ...]
    matters: Matters
    is_alike: Callable[[Event], bool] | None


def rehearse(
    module: Module,
    root: Function | ast.Module,
    places: tuple[Place, ...],
    matters: Matters,
    *,
    data: bool | None = None,
    is_alike: Callable[[Event], bool] | None = None,
) -> Iterator[Rehearsal]:
    """The ways through a function, or through the module's own level as a program, up to a number.

    With `is_alike`, a way on which nothing depends on the rank, and whose events are all alike for all ranks, is walked by
    the first rank alone.
    """
    scene = _Scene(module, root, places, matters, is_alike)
    waiting: list[list[tuple[object, bool]]] = [[]]
    statements = 0
    for _ in range(MAX_RUNS):
        if not waiting or statements > MAX_STATEMENTS:
            return
        prefix = waiting.pop()
        choices = Choices(prefix, data)
        run = _run(scene, choices)
        statements += choices.statements
        yield run
        for at in range(len(prefix), len(choices.order)):
            earlier = [(key, choices.taken[key]) for key in choices.order[:at]]
            waiting.append([*earlier, (choices.order[at], False)])


def _run(scene: _Scene, choices: Choices) -> Rehearsal:
    """All ranks on one way. What a rank chose after it had read what depends on it, the next ranks read otherwise: where
    their ways part, they start again with all that was chosen. Where there is always more to choose, the way is open."""
    for _ in range(MAX_ATTEMPTS):
        chosen = len(choices.order)
        choices.statements = 0
        run = _all(scene, choices)
        if len(choices.order) == chosen or not run.parts():
            return run
    run.is_open = True
    return run


def _all(scene: _Scene, choices: Choices) -> Rehearsal:
    tracks = []
    is_open = False
    limit = MAX_STATEMENTS // len(scene.places)
    for place in scene.places:
        chooser = Chooser(choices, place)
        reader = Reader(scene.module, place, trusting=True, chooser=chooser)
        walk = Walk(scene.module, reader, Track(place), scene.matters, limit)
        walk.fails = chooser.fails
        function = None if isinstance(scene.root, ast.Module) else scene.root
        walk.root(scene.root, Frame(scene.module, function, walk.given(function)))
        tracks.append(walk.track)
        is_open |= walk.is_open
        choices.statements += limit - walk.left
        if place is scene.places[0] and (is_open or _is_for_all(scene, choices, reader, walk.track)):
            choices.statements *= len(scene.places)
            break
    return Rehearsal(scene.module, scene.root, tracks, is_open, choices.asked_data, choices.data)


def _is_for_all(scene: _Scene, choices: Choices, reader: Reader, track: Track) -> bool:
    """Whether the other ranks would go the first one's way, to events that are the same for them."""
    if scene.is_alike is None or choices.data is not None or reader.is_of_place:
        return False
    return all(scene.is_alike(event) for event in track.events)
