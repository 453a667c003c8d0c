"""Faults: what is done to one run, chosen by a random source, so that a failure can be repeated."""

from __future__ import annotations

import random
import resource
from dataclasses import dataclass, field

from chaos.commands import Command

__all__ = ["FAULTS", "Fault", "chosen"]

MEBIBYTE = 1 << 20
DAY = 86400


@dataclass(frozen=True)
class Fault:
    """What happens to one run.

    Args:
        kind: one of FAULTS.
        moment: seconds after the start at which it happens.
        number: a size, count, signal or offset, whatever the kind needs.
        limits: resource limits of the command.
    """

    kind: str
    moment: float = 0.0
    number: int = 0
    limits: tuple[tuple[int, int], ...] = field(default=())

    @property
    def text(self) -> str:
        """What is done, to repeat it by hand."""
        limits = "".join(f" limit {name}={most}" for name, most in self.limits)
        return f"{self.kind} at {self.moment:.3f} s ({self.number}){limits}"


FAULTS = (
    "interrupt",
    "interrupt-start",
    "interrupt-group",
    "interrupt-twice",
    "terminate",
    "hang-up",
    "kill",
    "kill-child",
    "stop-and-continue",
    "stop-child",
    "stop-and-kill",
    "close-output",
    "close-errors",
    "full-output",
    "full-errors",
    "full-disk",
    "file-size",
    "few-descriptors",
    "little-memory",
    "few-processes",
    "no-folder",
    "folder-removed",
    "clock-jump",
)
"""All kinds of faults."""


def chosen(kind: str, command: Command, source: random.Random) -> Fault:
    """A fault of this kind for this command: its moment and size are random."""
    moment = source.uniform(0.0, 1.15 * command.seconds + 0.05)
    if kind == "interrupt-start":
        return Fault(kind, source.randrange(0, 31) * 0.02)
    if kind in ("close-output", "close-errors"):
        return Fault(kind, number=source.choice((0, 1, source.randrange(200), source.randrange(20000))))
    if kind == "full-disk":
        return Fault(kind, number=source.choice((4096, 16384, 65536, 262144)))
    if kind == "file-size":
        return Fault(kind, limits=((resource.RLIMIT_FSIZE, source.choice((0, 512, 4096, 65536))),))
    if kind == "few-descriptors":
        return Fault(kind, limits=((resource.RLIMIT_NOFILE, source.randrange(10, 40)),))
    if kind == "little-memory":
        most = source.uniform(0.3, 1.0) * command.mebibytes * MEBIBYTE
        return Fault(kind, limits=((resource.RLIMIT_AS, max(int(most), 90 * MEBIBYTE)),))
    if kind == "few-processes":
        return Fault(kind, limits=((resource.RLIMIT_NPROC, source.randrange(1, 12)),))
    if kind == "clock-jump":
        return Fault(kind, moment, source.choice((-30 * DAY, -DAY, -3600, -2, 2, 3600, DAY, 400 * DAY)))
    if kind == "stop-and-continue":
        return Fault(kind, moment, source.randrange(50, 2500))
    return Fault(kind, moment, source.randrange(1 << 16))
