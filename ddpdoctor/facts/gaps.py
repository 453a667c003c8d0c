"""Why something is unknown. Unknown never becomes 0 or OK: it is a Gap in the facts and a skip in the report."""

from __future__ import annotations

from enum import Enum
from typing import NoReturn, TypeVar

from ddpdoctor.light_dataclass import dataclass

__all__ = ["CannotLook", "Gap", "Section", "Why", "not_here", "unanswered"]

T = TypeVar("T")


class Why(str, Enum):
    """The kind of a gap. Only `unanswered` makes a report incomplete."""

    NOT_HERE = "not_here"
    """The subject does not exist on this machine: no GPU, no RDMA, one node."""
    NEEDS_ROOT = "needs_root"
    """Only root may see it."""
    UNANSWERED = "unanswered"
    """It exists but could not be read: an unreadable file, a timeout, a failed library call."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The `path` of missing facts (`host`, `host.shm`, `gpu.devices[3].ecc`), and the skip reason."""

    path: str
    reason: str
    why: Why = Why.UNANSWERED
    source: str = ""
    """The part of the system that would show them, such as `/proc`, if that is missing: see `facts.unseen`."""


class CannotLook(Exception):
    """Raised by a rule that cannot decide: the engine records a skip with this reason, never a pass."""

    def __init__(self, reason: str, why: Why = Why.UNANSWERED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.why = why


def not_here(reason: str) -> NoReturn:
    """Skip this rule: its subject does not exist on this machine."""
    raise CannotLook(reason, Why.NOT_HERE)


def unanswered(reason: str) -> NoReturn:
    """Skip this rule: its subject exists but could not be read."""
    raise CannotLook(reason, Why.UNANSWERED)


class Section:
    """Base of every section of the facts: a dataclass whose `gaps` give the reason why a field is None.

    The paths of a section's own gaps begin with its name: `host.shm`, `net.interfaces`.
    """

    __slots__ = ()
    gaps: tuple[Gap, ...]

    def gap(self, name: str) -> Gap | None:
        """The gap for field `name` (the last part of its path), if one was recorded."""
        return next((g for g in self.gaps if g.path.partition(".")[2] == name), None)

    def need(self, value: T | None, name: str) -> T:
        """`value`, or a skip with the reason that the gap of field `name` gives.

        Raises:
            CannotLook: `value` is None.
        """
        if value is not None:
            return value
        gap = self.gap(name)
        if gap is None:
            raise CannotLook("not collected", Why.UNANSWERED)
        raise CannotLook(gap.reason, gap.why)
