"""LAUNCH523: a command over several lines that ends too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.job_file import FileCommand, JobFile, TextSpan
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.findings import Edit, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, row_of, text_of, where

_BLANK_AFTER = re.compile(r"\\[ \t]+(?:#[^\n]*)?\n")
"""A backslash that quotes a blank, or what is left of a row after it is a comment."""


@cause(
    "LAUNCH523",
    "line-continuation-broken",
    Severity.ERROR,
    explains=("LAUNCH002", "LAUNCH003", "LAUNCH014", "LAUNCH025", "LAUNCH026", "LAUNCH031", "LAUNCH033"),
)
def line_continuation_broken(job_file: JobFile) -> Iterator[Finding]:
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
    for command in job_file.commands:
        if command.is_certain and _is_option(command):
            yield from _unfinished(job_file, command)
    seen = set()
    for launch in job_file.launches:
        if launch.span not in seen and launch.is_certain:
            seen.add(launch.span)
            yield from _blank_after(job_file, launch.span)


def _is_option(command: FileCommand) -> bool:
    """An option stands where a program is expected."""
    return re.match(r"--?[A-Za-z]", command.words[0]) is not None and UNKNOWN not in command.words[0]


def _unfinished(job_file: JobFile, command: FileCommand) -> Iterator[Finding]:
    """The row above ends a command that should go on."""
    row = row_of(job_file, command.span.start)
    if job_file.text[row.start : command.span.start].strip():
        return  # `a; --b`: not a new row
    above = _row_above(job_file, row)
    if above is None:
        return
    between, last = above
    name = command.words[0].partition("=")[0]
    text = text_of(job_file, last).rstrip("\n")
    edits: tuple[Edit, ...]
    if between:
        edits = tuple(edit(job_file, each.start, each.end, "") for each in between)
        what, at, label = "a comment ends the command", between[0].start, "move the comment above the command"
    elif text.rstrip() != text and text.rstrip().endswith("\\"):
        return  # told of the launch itself
    else:
        end = last.start + len(text.rstrip())
        edits = (edit(job_file, end, last.start + len(text), " \\"),)
        what, at, label = "the line above has no backslash", command.span.start, "is run as a command"
    yield Finding(
        f"{name} is run as a command: {what}",
        (Evidence("job_file.text", text.strip()[-60:], "a backslash at the end of the line"),),
        where=where(job_file, at),
        label=label,
        edits=edits,
    )


def _row_above(job_file: JobFile, row: TextSpan) -> tuple[list[TextSpan], TextSpan] | None:
    """The last row with a command above a row, and the comment rows between them."""
    between: list[TextSpan] = []
    at = row.start
    while at > 0:
        above = row_of(job_file, at - 1)
        text = text_of(job_file, above).strip()
        if not text:
            return None
        if not text.startswith("#"):
            return list(reversed(between)), above
        between.append(above)
        at = above.start
    return None


def _blank_after(job_file: JobFile, span: TextSpan) -> Iterator[Finding]:
    """`torchrun \\ ` at the end of a row: the launcher gets a blank as a word, and the next row is another command."""
    row = row_of(job_file, max(span.start, span.end - 1))
    found = _BLANK_AFTER.search(job_file.text, max(span.start, row.start - 1), row.end)
    following = job_file.text[row.end : row_of(job_file, row.end).end].strip() if row.end < len(job_file.text) else ""
    if found is None or not following or following.startswith("#"):
        return
    rest = found[0].strip()[1:].strip()
    what = "a comment" if rest else "a blank"
    yield Finding(
        f"{what} after the backslash ends the command",
        (Evidence("job_file.text", found[0].rstrip("\n"), "a backslash directly before the end of the line"),),
        where=where(job_file, found.start()),
        label=f"remove {what} after it",
        edits=(edit(job_file, found.start() + 1, found.end() - 1, ""),),
    )
