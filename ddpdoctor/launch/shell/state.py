"""What is certain at one point of a script."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ShellState"]


LONGEST_VALUE = 20_000
"""Characters of one value; of more, nothing is known."""


@dataclass(slots=True)
class ShellState:
    """What is certain at one point of the script."""

    known: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    environ: dict[str, str] = field(default_factory=dict)
    places: dict[str, Mark] = field(default_factory=dict)
    folders: tuple[str, ...] | None = None
    all_exported: bool = False
    before: dict[str, str] = field(default_factory=dict)

    def copy(self) -> ShellState:
        return ShellState(
            dict(self.known),
            set(self.exported),
            dict(self.environ),
            dict(self.places),
            self.folders,
            self.all_exported,
            dict(self.before),
        )

    def assign(self, name: str, value: str | None, place: Mark) -> None:
        """Set a variable; a value of None is not known at all."""
        if value is not None and len(value) > LONGEST_VALUE:
            value = None
        if value is None:
            self.known.pop(name, None)
        else:
            self.known[name] = value
        if self.all_exported or name in self.exported or name in self.environ:
            self.environ[name] = UNKNOWN if value is None else value
            self.places[name] = place

    def export(self, name: str, place: Mark) -> None:
        self.exported.add(name)
        if name in self.known:
            self.environ[name] = self.known[name]
            self.places.setdefault(name, place)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.known.pop(name, None)
            self.known.pop(f"{name}[@]", None)
            if name in self.environ:
                self.environ[name] = UNKNOWN
