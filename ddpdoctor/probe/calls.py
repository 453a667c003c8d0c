"""What a rank really asks its process group for, told before it is done: afterwards it may be too late to say anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["overheard"]

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


@contextmanager
def overheard(group: Any, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell every collective that is called on `group`, a class, within this block: its name, shape and dtype."""
    kept = {name: vars(group)[name] for name in NAMES if name in vars(group)}  # getattr would lose how they are bound
    for name in kept:
        setattr(group, name, _telling(NAMES[name], getattr(group, name), tell))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(group, name, method)


def _telling(name: str, method: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    def call(group: Any, *arguments: Any, **options: Any) -> Any:
        first: Any = arguments[0] if arguments else None
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        shape = f" of {list(first.shape)} {first.dtype}" if hasattr(first, "shape") else ""
        tell(f"{name}{shape}".replace("torch.", ""))
        return method(group, *arguments, **options)

    return call
