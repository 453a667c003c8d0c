"""Commands that something else than a shell starts on a simulated host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.imagined_run import Place
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.light_dataclass import dataclass

__all__ = ["PlacedCommand"]


@dataclass(frozen=True, slots=True)
class PlacedCommand:
    """A command that something else than a shell starts on an imagined host.

    `allocation` are the hosts that its mpirun finds, `files` what can be read there. `inside` says where the characters of
    a text that its shells execute were written.
    """

    place: Place
    argv: tuple[Value, ...]
    environ: Mapping[str, Value]
    origin: Origin
    folder: str | None = None
    allocation: Allocation = field(default_factory=Allocation)
    files: FileLookup = NO_FILES
    inside: Mapping[str, Callable[[int, int], Origin]] = field(default_factory=dict)
