"""Rehearses statements: what each rank does, in its order, through branches, loops, early exits and calls.

A `Rehearsal` is one way through a function with all ranks side by side: conditions that the text decides go each rank's
own way, and what it does not tell is chosen once for all of them. Conditions on a rank's own data are taken by one rank
and not by the others when `data` asks for it. A rehearsal that met a condition which may differ between ranks in an unknown
way, around something that matters, is `open`: nothing can be said of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ddpdoctor.facts.script.choices import Choices, Chooser
from ddpdoctor.facts.script.mattering import Matters
from ddpdoctor.facts.script.module import Module
from ddpdoctor.facts.script.nodes import Function
from ddpdoctor.facts.script.rehearsal import Event, Rehearsal, Track
from ddpdoctor.facts.script.values import Reader
from ddpdoctor.facts.script.walking import Walk
from ddpdoctor.facts.script.world import Frame, Place

__all__ = ["rehearse"]

MAX_RUNS = 12
MAX_ATTEMPTS = 3
MAX_STATEMENTS = 3000
"""Statements that all ways through one root may take together; a root that takes more is left alone."""


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
    waiting: list[list[tuple[object, bool]]] = [[]]
    statements = 0
    for _ in range(MAX_RUNS):
        if not waiting or statements > MAX_STATEMENTS:
            return
        prefix = waiting.pop()
        choices = Choices(prefix, data)
        run = _run(module, root, places, matters, choices, is_alike)
        statements += choices.statements
        yield run
        for at in range(len(prefix), len(choices.order)):
            earlier = [(key, choices.taken[key]) for key in choices.order[:at]]
            waiting.append([*earlier, (choices.order[at], False)])


def _run(
    module: Module,
    root: Function | ast.Module,
    places: tuple[Place, ...],
    matters: Matters,
    choices: Choices,
    is_alike: Callable[[Event], bool] | None,
) -> Rehearsal:
    """All ranks on one way. What a rank chose after it had read what depends on it, the next ranks read otherwise: where
    their ways part, they start again with all that was chosen."""
    before = choices.statements
    for _ in range(MAX_ATTEMPTS):
        chosen = len(choices.order)
        choices.statements = before
        run = _all(module, root, places, matters, choices, is_alike)
        if len(choices.order) == chosen or not run.parts():
            break
    return run


def _all(
    module: Module,
    root: Function | ast.Module,
    places: tuple[Place, ...],
    matters: Matters,
    choices: Choices,
    is_alike: Callable[[Event], bool] | None,
) -> Rehearsal:
    tracks = []
    is_open = False
    for place in places:
        chooser = Chooser(choices, place)
        reader = Reader(module, place, trusting=True, chooser=chooser)
        walk = Walk(module, reader, Track(place), matters, MAX_STATEMENTS // len(places))
        walk.fails = chooser.fails
        function = None if isinstance(root, ast.Module) else root
        walk.root(root, Frame(module, function, walk.given(function)))
        tracks.append(walk.track)
        is_open |= walk.is_open
        taken = MAX_STATEMENTS // len(places) - walk.left
        choices.statements += taken
        is_same = place is places[0] and choices.data is None and not reader.is_of_place
        if is_same and is_alike is not None and all(is_alike(event) for event in walk.track.events):
            choices.statements += taken * (len(places) - 1)
            break
    return Rehearsal(module, root, tracks, is_open, choices.asked_data, choices.data)
