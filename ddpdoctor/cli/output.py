"""Where a report goes: the terminal, a pipe, a file."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from ddpdoctor.app.output_file import CannotWriteError, write_file
from ddpdoctor.app.public_report import public_report, public_text
from ddpdoctor.app.request import Format, Request
from ddpdoctor.findings import Report
from ddpdoctor.render import render

__all__ = ["as_file", "emit", "emit_shortly", "emit_text", "has_colour", "say", "shareable", "width"]

WIDEST = 100
NARROWEST = 20

ASCII = str.maketrans(
    {"…": "...", "→": "->", "←": "<-", "—": "-", "–": "-", "×": "x", "·": "-", "≥": ">=", "≤": "<=", "µ": "u"}
    | dict.fromkeys("“”„", '"')
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("─━═╌", "-")
    | dict.fromkeys("│┃║", "|")
    | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╞╡╪┏┓┗┛┡┩╇┠┨", "+")
    | {"✓": "ok", "✗": "x", "●": "*", "•": "*"}
)
"""The replacements for a terminal without Unicode."""


def emit(report: Report, request: Request, tables: str = "", below: str = "") -> int:
    """Print or write the report and return the exit code.

    Without `--output`, standard output holds the report alone. With it, the file holds the report in the chosen format
    and standard output the table. `tables` (the facts of a part) and `below` belong to the table format: they are
    printed above and below the findings.
    """
    looks = {"quiet": request.quiet, "verbose": request.verbose}
    shown = report if sys.stdout.isatty() else public_report(report, request)
    table = render(shown, "table", width=width(), colour=has_colour(request), **looks)
    text = None
    if request.format is not Format.table or request.output is not None:
        text = as_file(report, request)
    tables, below = (shareable(each, request) for each in (tables, below))
    written = emit_text(_apart(_apart(tables, table), below), text, request)
    return report.exit_code(request.fail_on.severity) if written else 3


def emit_shortly(report: Report, request: Request) -> int:
    """Print one line and write the file, on a node without rank 0. If the format is not a table, standard output is
    reserved for the report of rank 0. The exit code is that of `emit`.
    """
    report = public_report(report, request)
    text = None if request.output is None else as_file(report, request)
    first = f": {report.findings[0].text}" if report.findings else ""
    line = f"ddpdoctor check on {report.host}: {report.verdict.value}{first}\n"
    if request.output is None and request.format is not Format.table:
        print(line, end="", file=sys.stderr)
        return report.exit_code(request.fail_on.severity)
    return report.exit_code(request.fail_on.severity) if emit_text(line, text, request) else 3


def as_file(report: Report, request: Request) -> str:
    """The report in the chosen format, as written to a file: without secrets; a table is 100 columns wide, without colors."""
    report = public_report(report, request)
    options: dict[str, object] = {"width": WIDEST} if request.format is Format.table else {}
    if request.format in (Format.table, Format.concise):
        options["verbose"] = request.verbose
    return render(report, request.format.value, **options)


def shareable(text: str, request: Request) -> str:
    """A text for standard output: as it is on a terminal, otherwise without secrets."""
    return text if not text or sys.stdout.isatty() else public_text(text, request)


def _apart(tables: str, table: str) -> str:
    """Facts and findings with one empty line between them, however the facts end."""
    return f"{tables.rstrip()}\n\n{table}" if tables.strip() and table else tables + table


def emit_text(table: str, text: str | None, request: Request) -> bool:
    """Show `table` and write `text`, the chosen format, to its destination; False if its file could not be written.

    `text` is None if only the table was requested.
    """
    if request.output is None and text is not None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(text)
        return True
    failure = None
    try:
        if request.output is not None:  # first: standard output may be a closed pipe
            write_file(request.output, table if text is None else text)
    except CannotWriteError as error:
        failure = error
    say(table)
    if failure is not None:
        sys.stdout.flush()
        print(f"error: {failure}", file=sys.stderr)
    return failure is None


def say(text: str) -> None:
    """Write to standard output, in ASCII if its encoding requires it."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def width() -> int:
    """The width of the terminal, at most 100 columns; 100 in a pipe."""
    if not sys.stdout.isatty():
        return WIDEST
    return max(NARROWEST, min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST))


def has_colour(request: Request, stream: TextIO | None = None) -> bool:
    """Colors only on a terminal (standard output), and never with --no-color, NO_COLOR or TERM=dumb."""
    return (
        (stream or sys.stdout).isatty()
        and not request.no_color
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
