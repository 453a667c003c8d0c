"""What `ddpdoctor compare` prints: one line per difference, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.findings import Report
from ddpdoctor.render.plain import printable

if TYPE_CHECKING:
    from ddpdoctor.facts.nodes import Node

__all__ = ["draw"]

COLOURS = {"note": "cyan", "warning": "bold yellow", "error": "bold red"}
MOST_SHOWN = 6


def draw(report: Report, nodes: Sequence[Node], *, width: int, colour: bool, quiet: bool) -> str:
    """A header line, one row per difference, and the total; at most `width` columns wide."""
    shown = ", ".join(printable(node.host) for node in nodes[:MOST_SHOWN]) + (", …" if len(nodes) > MOST_SHOWN else "")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("severity", no_wrap=True)
    table.add_column("code", no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in report.findings:
        word = finding.worst.value
        what, differs, values = finding.text.partition(" differs between nodes (")
        message = f"{what}: {values.removesuffix(')')}" if differs else what
        table.add_row(Text(word, style=COLOURS[word]), Text(finding.code), Text(message))
    count = len(report.findings)
    words = f"{count} difference{'' if count == 1 else 's'}" if count else "no difference"
    failures = [Text(f"could not {failure}") for failure in report.failures]
    head = Text(f"{len(nodes)} nodes compared: {shown}", style="bold")
    pieces: list[RenderableType] = [] if quiet else [head]
    pieces += [table] if count else []
    pieces += failures
    pieces += [] if quiet else [Text(words if len(nodes) > 1 else "nothing to compare")]
    return draw_all(pieces, width=width, colour=colour)
