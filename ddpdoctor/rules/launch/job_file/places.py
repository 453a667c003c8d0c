"""Places and corrections in a job file, from spans of its text."""

from __future__ import annotations

from ddpdoctor.facts.job_file import JobFile, TextSpan
from ddpdoctor.findings import Edit, Where

__all__ = ["edit", "row_of", "rows_of", "text_of", "where"]


def text_of(job_file: JobFile, span: TextSpan) -> str:
    """The text of a span."""
    return job_file.text[span.start : span.end]


def where(job_file: JobFile, at: int) -> Where:
    """The place of a character."""
    line, column = _place(job_file.text, at)
    return Where(file=job_file.path, line=line, column=column)


def edit(job_file: JobFile, start: int, end: int, text: str) -> Edit:
    """The correction that replaces these characters."""
    return Edit(job_file.path, *_place(job_file.text, start), *_place(job_file.text, end), text)


def row_of(job_file: JobFile, at: int) -> TextSpan:
    """The row of a character, with its newline."""
    start = job_file.text.rfind("\n", 0, at) + 1
    end = job_file.text.find("\n", at)
    return TextSpan(start, len(job_file.text) if end < 0 else end + 1)


def rows_of(job_file: JobFile) -> list[str]:
    """The rows of the file, without newlines."""
    return job_file.text.split("\n")


def _place(text: str, at: int) -> tuple[int, int]:
    before = text.rfind("\n", 0, at) + 1
    return text.count("\n", 0, at) + 1, at - before + 1
