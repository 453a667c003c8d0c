"""What all ranks do alike is decided once, from what every rank said of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpdoctor.facts.compared_variables import is_compared

__all__ = ["choose_backend", "choose_pairs", "traits"]


def choose_backend(wanted: str, ready: Iterable[Mapping[str, Any]]) -> str:
    """`wanted`, or for `auto`: nccl when every rank sees a GPU, else gloo."""
    if wanted != "auto":
        return wanted
    return "nccl" if all(record["gpus"] for record in ready) else "gloo"


def choose_pairs(ready: Iterable[Mapping[str, Any]], hosts: int) -> int:
    """The ranks of each host where all hosts have as many and number them one after the other; 0: nothing is paired."""
    sizes = [record["per_host"] for record in ready]
    per_host = sizes[0] or (1 if hosts == len(sizes) else 0)
    return per_host if len(set(sizes)) == 1 and per_host * hosts == len(sizes) else 0


def traits(environ: Mapping[str, str], ready: Mapping[str, Any]) -> dict[str, str]:
    """What should be the same on all ranks, by its path in the facts: versions, GPUs, and variables without secrets."""
    found = {f"environ.{name}": value for name, value in environ.items() if is_compared(name)}
    for path, word in (("versions.torch", "torch"), ("versions.build", "build"), ("versions.nccl", "nccl")):
        if ready.get(word):
            found[path] = str(ready[word])
    return found | {"gpu.count": str(ready["gpus"])}
