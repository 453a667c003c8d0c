"""The plan that all ranks share, decided once from the reports of all ranks."""

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
    """The ranks per host, if all hosts have the same number of consecutive ranks; 0: no pairs are measured."""
    sizes = [record["per_host"] for record in ready]
    per_host = sizes[0] or (1 if hosts == len(sizes) else 0)
    return per_host if len(set(sizes)) == 1 and per_host * hosts == len(sizes) else 0


def traits(environ: Mapping[str, str], ready: Mapping[str, Any]) -> dict[str, str]:
    """Properties that should be equal on all ranks, by path in the facts: versions, GPUs, and variables without secrets."""
    properties = {f"environ.{name}": value for name, value in environ.items() if is_compared(name)}
    for path, word in (("versions.torch", "torch"), ("versions.build", "build"), ("versions.nccl", "nccl")):
        if ready.get(word):
            properties[path] = str(ready[word])
    return properties | {"gpu.count": str(ready["gpus"])}
