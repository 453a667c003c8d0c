"""Cuts texts to the columns of a terminal, in time that grows with the columns and not with the text."""

from __future__ import annotations

import itertools

from rich.cells import cell_len

__all__ = ["cut"]

_MOST_CHARACTERS = 8
"""Characters for each cell: accents need none, and a text of nothing else is cut."""


def cut(text: str, room: int) -> str:
    """The text as far as it fits into `room` cells, with a mark where it was cut; empty without room for the mark."""
    shown = text[: room * _MOST_CHARACTERS]
    if len(shown) == len(text) and cell_len(shown) <= room:
        return text
    ends = itertools.accumulate(map(cell_len, shown))
    kept = sum(1 for _ in itertools.takewhile(lambda cells: cells < room, ends))
    return f"{shown[:kept]}…" if room > 0 else ""
