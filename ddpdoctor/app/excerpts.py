"""The source lines that a screen shows under a finding: of a launch line, a job file, a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.examined import Excerpt
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.findings import Finding, Report
from ddpdoctor.system.regular_file import read_regular

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["excerpt_of_text", "with_code_of_tracebacks", "with_excerpts"]

MOST_LINES_ABOVE = 3
"""The head of the block around a line is shown if it is at most this many lines above."""
LARGEST_FILE_BYTES = 4 << 20


def with_excerpts(report: Report, launch: Launch | None) -> Report:
    """The report, with source excerpts for its findings about launch lines and lines of files."""
    lines: tuple[LaunchLine, ...] = () if launch is None else launch.lines
    texts: dict[str, Sequence[str]] = {}
    findings = tuple(_with_excerpt(finding, lines, texts) for finding in report.findings)
    return replace(report, findings=findings)


def excerpt_of_text(finding: Finding, lines: Sequence[str]) -> Excerpt | None:
    """The line of a finding in `lines`, below the head of its block.

    None if the finding has no line, or the line does not exist.
    """
    number, column = finding.where.line, finding.where.column
    if number is None or not 1 <= number <= len(lines):
        return None
    at = number - 1
    line = lines[at]
    start = (column or 1 + len(line) - len(line.lstrip())) - 1
    head = _head(lines, at)
    return Excerpt(head + 1, tuple(lines[head : at + 1]), number, start + 1, _length(finding, line, start))


def _with_excerpt(finding: Finding, lines: Sequence[LaunchLine], texts: dict[str, Sequence[str]]) -> Finding:
    if finding.excerpt is not None or finding.where.line is None:
        return finding
    line = _launch_line(finding, lines)
    path = finding.where.file
    if line is not None and path is None:
        return replace(finding, excerpt=_excerpt_of_launch(finding, line))
    if path is None:
        return finding
    if path not in texts:
        texts[path] = _text(path)
    excerpt = excerpt_of_text(finding, texts[path])
    if excerpt is None or not finding.where.column:
        return replace(finding, excerpt=excerpt)
    return replace(finding, excerpt=_as_written(finding, excerpt, lines))


def _text(path: str) -> Sequence[str]:
    """The lines of a file; empty if it can no longer be read, is not a text, or is too long."""
    try:
        data = read_regular(path, LARGEST_FILE_BYTES)
    except OSError:  # removed since it was judged
        return ()
    return data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")


def _launch_line(finding: Finding, lines: Sequence[LaunchLine]) -> LaunchLine | None:
    """The launch line that a finding is about."""
    where = finding.where
    same = (line for line in lines if line.file == where.file and line.node == where.node)
    rows = ((line, line.first_line, line.first_line + line.source.count("\n")) for line in same)
    return next((line for line, begin, end in rows if where.line and begin <= where.line <= end), None)


def _excerpt_of_launch(finding: Finding, line: LaunchLine) -> Excerpt | None:
    """The row of a launch line that is not in a file."""
    number, column = finding.where.line or 1, finding.where.column
    rows = line.source.split("\n")
    row = number - line.first_line
    if column is None or not 0 <= row < len(rows):
        return None
    start = column - 1 - (line.first_column - 1 if row == 0 else 0)
    excerpt = Excerpt(number, (rows[row],), number, start + 1, _length(finding, rows[row], start), is_numbered=False)
    return _as_written(finding, excerpt, (line,))


def _as_written(finding: Finding, excerpt: Excerpt, lines: Sequence[LaunchLine]) -> Excerpt:
    """The excerpt with a caret as long as the word of the launch line that it points at."""
    for line in lines:
        if line.file == finding.where.file and line.node == finding.where.node:
            place = (finding.where.line, finding.where.column)
            word = next((word for word in line.argv if line.place(word.start) == place), None)
            if word is not None:
                return replace(excerpt, length=max(1, word.end - word.start))
    return excerpt


def _head(lines: Sequence[str], at: int) -> int:
    """The index of the head of the block that contains a line; the line's own if none is near."""
    indent = _indent(lines[at])
    for index in range(at - 1, max(-1, at - 1 - MOST_LINES_ABOVE), -1):
        if lines[index].strip() and _indent(lines[index]) < indent:
            return index if lines[index].rstrip().endswith(":") else at
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _length(finding: Finding, line: str, start: int) -> int:
    """The length that a finding points at: the code that it quotes, otherwise one word."""
    seen = finding.evidence[0].seen if finding.evidence else ""
    if seen and line.startswith(seen, start):
        return len(seen)
    return max(1, len(line[start:].split(" ")[0]))


def with_code_of_tracebacks(report: Report, log: Log) -> Report:
    """The report, with excerpts for findings about a line of a script, if a traceback in the log contains it."""
    code = {
        (frame.file, frame.line): frame.code for traceback in log.tracebacks for frame in traceback.frames if frame.code
    }
    findings = tuple(
        replace(finding, excerpt=Excerpt(where.line, (text,), where.line, 1, 0))
        if (where := finding.where).line is not None and (text := code.get((where.file or "", where.line)))
        else finding
        for finding in report.findings
    )
    return replace(report, findings=findings)
