"""The facts of each part as a table: one module per command, each with `draw(facts, width, colour) -> str`."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from ddpdoctor.render.plain import printable

__all__ = ["draw_all"]


def draw_all(pieces: list[RenderableType], *, width: int, colour: bool) -> str:
    """The pieces below each other as text, at most `width` columns wide. No text in them is markup, or steers the terminal:
    files and other processes may have written it.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        markup=False,
        emoji=False,
    )
    for piece in pieces:
        shown = [Segment(printable(each.text), each.style, each.control) for each in console.render(piece)]
        console.print(Segments(shown), end="")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
