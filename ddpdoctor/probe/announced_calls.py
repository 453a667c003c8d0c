"""What a rank really asks its process group for, told before it is done: afterwards it may be too late to say anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["AnnouncedCalls", "announce_calls"]

NAMES = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
}
"""torch's ProcessGroup has these methods, whichever function of torch.distributed was called."""


class AnnouncedCalls:
    """The calls of a rank where one is due at a time: `tell` gets each of them, and in words one too many or too few.

    `seconds` is how long they took, from each call itself: a rank that comes late to all of them waits for nobody.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.seconds = 0.0
        self.made = 0
        self._tell = tell
        self._due = 0
        self._began: float | None = None

    def expect(self) -> None:
        """One more call is due now; those before it are done."""
        self.finish()
        self._due += 1

    def finish(self) -> None:
        """All that were due should have been made. Where no call is ever seen, there is nothing to compare."""
        if self._began is not None:
            self.seconds += time.monotonic() - self._began
        self._began = None
        if 0 < self.made < self._due:
            self._tell("nothing")

    def note(self, call: str) -> None:
        """It is made now."""
        self._began = time.monotonic()
        self.made += 1
        self._tell(call if self.made <= self._due else f"{call} once more")


@contextmanager
def announce_calls(group: Any, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell every collective that is called on `group`, a class, within this block: its name, shape and dtype."""
    kept = {name: vars(group)[name] for name in NAMES if name in vars(group)}  # getattr would lose how they are bound
    for name in kept:
        setattr(group, name, _announcing(NAMES[name], getattr(group, name), tell))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(group, name, method)


def _announcing(name: str, method: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    def call(group: Any, *arguments: Any, **options: Any) -> Any:
        first: Any = arguments[0] if arguments else None
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        shape = f" of {list(first.shape)} {first.dtype}" if hasattr(first, "shape") else ""
        tell(f"{name}{shape}{_reduction(arguments)}".replace("torch.", ""))
        return method(group, *arguments, **options)

    return call


def _reduction(arguments: tuple[Any, ...]) -> str:
    """How the numbers are put together, "" for their sum."""
    options = arguments[1] if len(arguments) > 1 else None
    name = getattr(getattr(getattr(options, "reduceOp", None), "op", None), "name", "SUM")
    return "" if name == "SUM" else f" by {name}"
