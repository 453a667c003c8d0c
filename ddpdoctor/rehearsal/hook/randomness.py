"""Random numbers that the script draws while it trains: the same ones on all ranks are the same augmentation for all."""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.ending import steps
from ddpdoctor.rehearsal.hook.places import frames_of_user, is_of_user

__all__ = ["DRAWS", "begin", "drawn", "states"]

DRAWS = frozenset(
    ("randn", "rand", "randint", "randn_like", "rand_like", "normal", "bernoulli", "normal_", "uniform_", "bernoulli_")
)
MOST_DRAWS = 40
MOST_BYTES = 4096

_count = {"draws": 0, "epochs": 0}


def begin() -> None:
    """A training epoch begins: from now on draws are recorded."""
    _count["epochs"] += 1


def drawn(name: str, result: Any) -> None:
    """Record a tensor of random numbers that the user's own code has drawn in training."""
    if not _count["epochs"] or _count["draws"] >= MOST_DRAWS or not isinstance(result, torch.Tensor):
        return
    caller = sys._getframe(2)
    if not is_of_user(caller.f_code.co_filename) or result.layout is not torch.strided or not result.numel():
        return
    _count["draws"] += 1
    with torch.no_grad(), torch._C.DisableTorchFunction():
        flat = result.detach().reshape(-1)[:MOST_BYTES].contiguous()
        digest = zlib.crc32(flat.view(torch.uint8).numpy().tobytes()) if flat.dtype != torch.bfloat16 else 0
    at = frames_of_user(caller)
    channel().say("draw", what=name, digest=digest, size=result.numel(), step=steps().count, at=at)


def states() -> dict[str, int]:
    """Digests of the states of Python's and numpy's generators."""
    found = {"random": zlib.crc32(repr(random.getstate()).encode())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        found["numpy"] = zlib.crc32(state[1].tobytes() + str(state[2:]).encode())
    return found
