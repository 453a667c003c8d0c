"""Announces the calls that a rank makes on its process group before they run, because they may hang."""

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
"""The methods of torch's ProcessGroup behind the functions of torch.distributed."""


class AnnouncedCalls:
    """The calls of a rank, one expected at a time: `tell` gets each of them, and reports one too many or too few.

    `seconds` is how long they took, from the call on: a rank that is the last to call does not wait.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.seconds = 0.0
        self.made = 0
        self._tell = tell
        self._due = 0
        self._began: float | None = None

    def expect(self) -> None:
        """One more call is expected now; earlier ones are finished."""
        self.finish()
        self._due += 1

    def finish(self) -> None:
        """All expected calls should have been made. If no call was ever seen, there is nothing to compare."""
        if self._began is not None:
            self.seconds += time.monotonic() - self._began
        self._began = None
        if 0 < self.made < self._due:
            self._tell("nothing")

    def note(self, call: str) -> None:
        """A call is made now."""
        self._began = time.monotonic()
        self.made += 1
        self._tell(call if self.made <= self._due else f"{call} once more")


@contextmanager
def announce_calls(group: Any, tell: Callable[[str], None]) -> Iterator[None]:
    """Announce every collective that is called on the class `group` within this block: its name, shape and dtype."""
    kept = {name: vars(group)[name] for name in NAMES if name in vars(group)}  # getattr would lose their binding
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
    """The reduction, "" for a sum."""
    options = arguments[1] if len(arguments) > 1 else None
    name = getattr(getattr(getattr(options, "reduceOp", None), "op", None), "name", "SUM")
    return "" if name == "SUM" else f" by {name}"
