"""Where a report goes: the terminal, a pipe, a file."""

from __future__ import annotations

import os
import shutil
import sys

from ddpdoctor.cli.options import Common, Format, UsageError
from ddpdoctor.findings import Report
from ddpdoctor.render import render

__all__ = ["emit", "has_colour", "width"]

WIDEST = 100


def emit(report: Report, common: Common, tables: str = "") -> int:
    """Print or write the report and return the exit code.

    Without `--output`, standard output holds the report alone. With it, the file holds the report in the chosen format
    and standard output the table. `tables` (the facts of a part) belongs to the table format and stands before it.
    """
    table = common.format is Format.table or common.output is not None
    if table:
        sys.stdout.write(tables + render(report, "table", width=width(), colour=has_colour(common)))
    if common.output is not None:
        _write(report, common)
    elif not table:
        sys.stdout.write(render(report, common.format.value))
    return report.exit_code(common.fail_on.severity)


def width() -> int:
    """Columns to write for: the terminal's, at most 100; 100 in a pipe."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST) if sys.stdout.isatty() else WIDEST


def has_colour(common: Common) -> bool:
    """Colours only on a terminal, and never against --no-color, NO_COLOR or TERM=dumb."""
    return (
        sys.stdout.isatty()
        and not common.no_color
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _write(report: Report, common: Common) -> None:
    path = common.output
    assert path is not None
    text = render(report, common.format.value, **({"width": WIDEST} if common.format is Format.table else {}))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None
