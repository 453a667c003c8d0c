"""One way through a function with all ranks side by side: what each did, in its order, and where they parted."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddpdoctor.scripts.interpreter.simulated_job import Frame, Place
from ddpdoctor.scripts.interpreter.values import Reader
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["Event", "Leaving", "Rehearsal", "Test", "Track"]


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """A condition around an event: the statement, which way was taken, and how many calls deep it stands.

    `chosen`: nothing in the text decides it.
    """

    node: ast.AST
    taken: bool
    depth: int
    module: Module
    chosen: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One call that was done. `chain` are the calls that led to it, from the root's own text to the call itself."""

    name: str
    call: ast.Call
    frame: Frame
    reader: Reader
    chain: tuple[ast.Call, ...]
    tests: tuple[Test, ...]
    loops: tuple[ast.AST, ...] = ()

    def argument(self, position: int | None, *names: str) -> ast.expr | None:
        """The expression given for a parameter, by name or position."""
        for keyword in self.call.keywords:
            if keyword.arg in names:
                return keyword.value
        if position is not None and position < len(self.call.args):
            return self.call.args[position]
        return None

    def read(self, node: ast.expr | None) -> object:
        """The value of an expression where this rank did the call; None for None."""
        return None if node is None else self.reader.value(node, self.frame)


@dataclass(frozen=True, slots=True, eq=False)
class Leaving:
    """A rank left its block or the process early, inside of `loops`. `how` is return, break, continue, exit or raise.

    `depth`: how many calls deep. A return leaves no more than its own function, whoever calls that.
    """

    how: str
    node: ast.AST
    tests: tuple[Test, ...]
    loops: tuple[ast.AST, ...] = ()
    depth: int = 0

    @property
    def reasons(self) -> tuple[Test, ...]:
        """The conditions around it that decide whether what it leaves goes on."""
        return self.tests if self.how in ("exit", "raise") else tuple(t for t in self.tests if t.depth == self.depth)


@dataclass(slots=True, eq=False)
class Track:
    """One rank's way."""

    place: Place
    events: list[Event] = field(default_factory=list)
    leavings: list[Leaving] = field(default_factory=list)
    decisions: dict[ast.AST, list[bool]] = field(default_factory=dict)
    opaque: list[tuple[str, tuple[Test, ...]]] = field(default_factory=list)
    raised: bool = False


@dataclass(slots=True, eq=False)
class Rehearsal:
    """One way through a root with all ranks side by side."""

    module: Module
    root: ast.AST
    tracks: list[Track]
    is_open: bool = False
    asked_data: bool = False
    data: bool | None = None

    def parts(self) -> bool:
        """Whether the ranks took any condition differently."""
        return any(self.differs(node) for node in {n for t in self.tracks for n in t.decisions})

    def differs(self, node: ast.AST) -> bool:
        """Whether the ranks took a condition differently."""
        seen = [t.decisions[node] for t in self.tracks if node in t.decisions]
        ways = {frozenset(s) for s in seen}
        return len(ways) > 1 or (frozenset((True, False)) in ways and any(s != seen[0] for s in seen))

    def apart(self, tests: Iterable[Test]) -> list[Test]:
        """Those of the conditions that the ranks took differently, outermost first."""
        return [t for t in tests if self.differs(t.node)]
