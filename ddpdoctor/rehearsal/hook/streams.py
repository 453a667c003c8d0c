"""The random streams of a rank and of its data workers: where they are set, and their states after each step."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.ending import steps
from ddpdoctor.rehearsal.hook.places import frames_of_user, place

__all__ = ["Worker", "stepped", "watch"]

MOST_STEPS = 60
_count = {"steps": 0}
_worker: dict[str, Any] = {}
"""In a process of a data loader: its loader and number, and the states of the generators before the first batch."""


def watch() -> None:
    """Report where the state of torch's generator is restored, and what workers draw."""
    import torch.random as module
    from torch.utils.data._utils import fetch

    original = module.set_rng_state

    @functools.wraps(original)
    def setting(state: Any) -> None:
        channel().say("rng_set", at=place(), step=steps().count)
        original(state)

    module.set_rng_state = torch.set_rng_state = setting
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _watch_fetcher(kind)


def _watch_fetcher(kind: Any) -> None:
    original = kind.fetch

    @functools.wraps(original)
    def fetched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _worker:
            return original(self, *args, **kwargs)
        before = dict(_worker)
        _worker.clear()
        result = original(self, *args, **kwargs)
        after = _states()
        drawn = sorted(name for name, state in after.items() if before["states"].get(name) != state)
        channel().say("worker_draws", **{**before, "drawn": drawn, "parent": os.getppid()})
        return result

    kind.fetch = fetched


def stepped() -> None:
    """An optimizer step ended: report the state of torch's generator."""
    if _count["steps"] < MOST_STEPS:
        _count["steps"] += 1
        with torch._C.DisableTorchFunction():
            state = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        channel().say("stream", step=steps().count, state=state)


def _states() -> dict[str, int]:
    with torch._C.DisableTorchFunction():
        found = {
            "random": zlib.crc32(repr(random.getstate()).encode()),
            "torch": zlib.crc32(torch.get_rng_state().numpy().tobytes()),
        }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        found["numpy"] = zlib.crc32(state[1].tobytes() + str(state[2:]).encode())
    return found


@contextlib.contextmanager
def _numpy_seeds(found: list[Any]) -> Iterator[None]:
    """Where numpy's generator gets a seed."""
    numpy = sys.modules.get("numpy")
    original = None if numpy is None else numpy.random.seed

    def seed(*args: Any, **kwargs: Any) -> Any:
        found[:] = place()
        return original(*args, **kwargs)  # type: ignore[misc]

    if numpy is not None:
        numpy.random.seed = seed
    try:
        yield
    finally:
        if numpy is not None:
            numpy.random.seed = original


class Worker:
    """The function that a worker of a data loader calls first: the user's own, then a report of the generators."""

    def __init__(self, loader: int, function: Any) -> None:
        self.loader, self.function = loader, function

    def __call__(self, number: int) -> None:
        before = _states()
        seeds: list[Any] = []
        if self.function is not None:
            with _numpy_seeds(seeds):
                self.function(number)
        states = _states()
        seeded = sorted(name for name, state in states.items() if before.get(name) != state)
        code = getattr(self.function, "__code__", None)
        at = [] if code is None else [[code.co_filename, code.co_firstlineno, code.co_name]]
        _worker.update(
            loader=self.loader, worker=number, states=states, seeded=seeded, at=seeds or at or frames_of_user()
        )
