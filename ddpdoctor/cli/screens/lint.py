"""Lines that `ddpdoctor lint` prints besides findings: launchers around a line whose own options are not judged."""

from __future__ import annotations

from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """One line for each launcher whose own options are not judged."""
    lines = facts.launch.lines if facts.launch is not None else ()
    names = dict.fromkeys(layer.launcher.value for line in lines for layer in line.unread)
    notes = [Text(f"{name}: its own options are not judged, only the program that it starts") for name in names]
    return draw_all([*notes], width=width, colour=colour)
