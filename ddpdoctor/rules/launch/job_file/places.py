"""Places and corrections in a job file, from spans of its text."""

from __future__ import annotations

from ddpdoctor.facts.gaps import CannotLook, Why
from ddpdoctor.facts.shell_text import ShellText, TextSpan
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Edit, Where

__all__ = ["edit", "row_of", "shell_of", "text_of", "where"]


def shell_of(submission: Submission) -> ShellText:
    """The text of a shell or batch file.

    Raises:
        CannotLook: it is another file.
    """
    if submission.shell is None:
        raise CannotLook("no shell or batch file was given", Why.NOT_HERE)
    return submission.shell


def text_of(submission: Submission, span: TextSpan) -> str:
    """The text of a span."""
    return submission.text[span.start : span.end]


def where(submission: Submission, at: int) -> Where:
    """The place of a character."""
    line, column = _place(submission.text, at)
    return Where(file=submission.file, line=line, column=column)


def edit(submission: Submission, start: int, end: int, text: str) -> Edit:
    """The correction that replaces these characters."""
    return Edit(submission.file, *_place(submission.text, start), *_place(submission.text, end), text)


def row_of(submission: Submission, at: int) -> TextSpan:
    """The row of a character, with its newline."""
    start = submission.text.rfind("\n", 0, at) + 1
    end = submission.text.find("\n", at)
    return TextSpan(start, len(submission.text) if end < 0 else end + 1)


def _place(text: str, at: int) -> tuple[int, int]:
    before = text.rfind("\n", 0, at) + 1
    return text.count("\n", 0, at) + 1, at - before + 1
