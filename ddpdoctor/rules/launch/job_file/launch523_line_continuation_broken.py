"""LAUNCH523: a command over several lines that ends too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.shell_text import ShellCommand, TextSpan
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Edit, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, row_of, shell_of, text_of, where

_BLANK_AFTER = re.compile(r"\\[ \t]+(?:#[^\n]{0,200})?\n")
"""A backslash that quotes a blank, or what is left of a row after it is a comment."""


@cause(
    "LAUNCH523",
    "line-continuation-broken",
    Severity.ERROR,
    explains=("LAUNCH002", "LAUNCH003", "LAUNCH014", "LAUNCH025", "LAUNCH026", "LAUNCH031", "LAUNCH033"),
)
def line_continuation_broken(submission: Submission) -> Iterator[Finding]:
    """A launch command on several lines ends early, and the shell runs the rest separately.

    ## Why it matters
    Only a backslash directly before the end of the line continues it. Without it, with a space or comment after it, or
    with a comment line below, the launcher misses the options, and the shell prints `--max_length: command not found`.

    ## Fix
    End each line but the last with a backslash, with nothing after it.

    Move comments above the command.

    ## Example
        train.sh: line 4: --epochs: command not found

        # before
        torchrun --standalone --nproc-per-node=4 train.py
          --epochs 3

        # after
        torchrun --standalone --nproc-per-node=4 train.py \\
          --epochs 3
    """
    for command in shell_of(submission).commands:
        if command.is_certain and _is_option(command):
            yield from _unfinished(submission, command)
    spans = {task.span: None for step in submission.steps if step.is_certain for task in step.tasks}
    for span in spans:
        yield from _blank_after(submission, span)


def _is_option(command: ShellCommand) -> bool:
    """An option stands where a program is expected."""
    return re.match(r"--?[A-Za-z]", command.words[0]) is not None and UNKNOWN not in command.words[0]


def _unfinished(submission: Submission, command: ShellCommand) -> Iterator[Finding]:
    """The row above ends a command that should continue."""
    row = row_of(submission, command.span.start)
    if submission.text[row.start : command.span.start].strip():
        return  # `a; --b`: not a new row
    above = _row_above(submission, row)
    if above is None:
        return
    between, last = above
    name = command.words[0].partition("=")[0]
    text = text_of(submission, last).rstrip("\n")
    edits: tuple[Edit, ...]
    if between:
        edits = tuple(edit(submission, each.start, each.end, "") for each in between)
        what, at, label = "a comment ends the command", between[0].start, "move the comment above the command"
    elif text.rstrip() != text and text.rstrip().endswith("\\"):
        return  # told of the launch itself
    else:
        end = last.start + len(text.rstrip())
        edits = (edit(submission, end, last.start + len(text), " \\"),)
        what, at, label = "the line above has no backslash", command.span.start, "is run as a command"
    yield Finding(
        f"{name} is run as a command: {what}",
        (Evidence("submission.shell.text", text.strip()[-60:], "a backslash at the end of the line"),),
        where=where(submission, at),
        label=label,
        edits=edits,
    )


def _row_above(submission: Submission, row: TextSpan) -> tuple[list[TextSpan], TextSpan] | None:
    """The last row with a command above a row, and the comment rows between them."""
    between: list[TextSpan] = []
    at = row.start
    while at > 0:
        above = row_of(submission, at - 1)
        text = text_of(submission, above).strip()
        if not text:
            return None
        if not text.startswith("#"):
            return list(reversed(between)), above
        between.append(above)
        at = above.start
    return None


def _blank_after(submission: Submission, span: TextSpan) -> Iterator[Finding]:
    """`torchrun \\ ` at the end of a row: the launcher gets a blank as a word, and the next row is another command."""
    row = row_of(submission, max(span.start, span.end - 1))
    found = _BLANK_AFTER.search(submission.text, max(span.start, row.start - 1), row.end)
    following = (
        submission.text[row.end : row_of(submission, row.end).end].strip() if row.end < len(submission.text) else ""
    )
    if found is None or not following or following.startswith("#"):
        return
    rest = found[0].strip()[1:].strip()
    what = "a comment" if rest else "a space"
    yield Finding(
        f"{what} after the backslash ends the command",
        (Evidence("submission.shell.text", found[0].rstrip("\n"), "a backslash directly before the end of the line"),),
        where=where(submission, found.start()),
        label=f"remove {what} after it",
        edits=(edit(submission, found.start() + 1, found.end() - 1, ""),),
    )
