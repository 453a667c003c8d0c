"""What all ranks do alike is decided once, from what every rank said of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["choose_backend"]


def choose_backend(wanted: str, ready: Iterable[Mapping[str, Any]]) -> str:
    """`wanted`, or for `auto`: nccl when every rank sees a GPU, else gloo."""
    if wanted != "auto":
        return wanted
    return "nccl" if all(record["gpus"] for record in ready) else "gloo"
