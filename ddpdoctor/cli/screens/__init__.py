"""The facts of each part as a table: one module per command, each with `draw(facts, width, colour) -> str`."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

__all__ = ["draw_all"]


def draw_all(pieces: list[RenderableType], *, width: int, colour: bool) -> str:
    """The pieces below each other as text, at most `width` columns wide."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    for piece in pieces:
        console.print(piece)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
