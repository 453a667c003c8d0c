"""Finds the rank with wrong numbers if every rank gets a wrong sum: tests halves of the ranks, by each bit of the rank."""

from __future__ import annotations

from typing import Any

from ddpdoctor.probe.collectives import ELEMENTS, Stage
from ddpdoctor.probe.errors import WrongValue

__all__ = ["find_wrong_rank"]

TIMES = 3


def find_wrong_rank(stage: Stage, wrong: WrongValue | None) -> None:
    """Raise this rank's error, if any. All ranks call this; if all have an error, they search for the rank that causes it.

    Raises:
        WrongValue: `wrong`, with the culprit if it is known.
    """
    if stage.world_size == 1 or not all(row[0] for row in _everyone(stage, [float(wrong is not None)])):
        if wrong is not None:
            raise wrong
        return
    assert wrong is not None
    bits = range((stage.world_size - 1).bit_length())
    table = _everyone(stage, [_halved(stage, bit) for bit in bits])
    guilty = [
        rank
        for rank in range(stage.world_size)
        if all(bool(row[bit]) == _alike(rank, other, bit) for other, row in enumerate(table) for bit in bits)
    ]
    wrong.culprit = guilty[0] if len(guilty) == 1 else None
    raise wrong


def _alike(one: int, other: int, bit: int) -> bool:
    return (one ^ other) >> bit & 1 == 0


def _halved(stage: Stage, bit: int) -> float:
    """1.0 if the sum over the ranks with the same value of a bit as this rank is wrong, else 0.0."""
    for value in (0, 1):
        members = [rank for rank in range(stage.world_size) if rank >> bit & 1 == value]
        group = stage.dist.new_group(members)  # every rank has to call this for every group
        if stage.rank in members:
            own, total = group, sum(members) + len(members)
    is_wrong = False
    for attempt in range(TIMES):
        numbers = stage.noise(ELEMENTS, attempt) if attempt else stage.pattern(ELEMENTS)
        tensor = numbers * (stage.rank + 1)
        stage.dist.all_reduce(tensor, group=own)
        is_wrong = bool((tensor != numbers * total).any()) or is_wrong
    return float(is_wrong)


def _everyone(stage: Stage, numbers: list[float]) -> list[list[float]]:
    """These numbers of every rank, on every rank."""
    mine: Any = stage.torch.tensor(numbers, dtype=stage.torch.float64, device=stage.device)
    gathered = [stage.tensor(len(numbers)) for _ in range(stage.world_size)]
    stage.dist.all_gather(gathered, mine)
    stage.settle()
    return [tensor.tolist() for tensor in gathered]
