"""SCRIPT500 and SCRIPT501: a file that Python cannot parse, or that is nested too deeply to be checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.scripts.syntax.module import too_deep, unreadable
from ddpdoctor.scripts.syntax.parsing import MAX_DEPTH

PYTHON_2 = (
    "Missing parentheses in call to",
    "multiple exception types must be parenthesized",
    "leading zeros in decimal integer literals",
)


@cause("SCRIPT500", "source-not-python", Severity.ERROR)
def source_not_python(script: Script) -> Iterator[Finding]:
    """Python cannot parse the script.

    ## Why it matters
    Every rank fails with `SyntaxError` before its first line runs, and a launcher prints it far above its own
    `ChildFailedError`. The rest of the file was not checked; in a notebook, the other cells were.

    ## Fix
    Fix the syntax error, save the file as UTF-8, or port it from Python 2.

    A newer Python may accept syntax that this one does not.

    ## Example
        # before
        print "loss", loss
        # SyntaxError: Missing parentheses in call to 'print'. Did you mean print(...)?

        # after
        print("loss", loss)
    """
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    for source, problem in unreadable(script):
        reason = problem.message
        if any(message_part in reason for message_part in PYTHON_2):
            reason += " (this looks like Python 2)"
        elif "f-string" in reason and sys.version_info < (3, 12):
            reason += " (Python 3.12 and newer allow more in f-strings)"
        if problem.is_unread:
            message, label = f"file not checked: {reason}", "not checked"
        else:
            message, label = f"{version} cannot parse this file: {reason}", "every rank fails before its first line"
        yield Finding(
            message,
            evidence=(Evidence(f"script.{source.path}", problem.message, "Python 3 source"),),
            where=Where(file=source.path, line=problem.line, column=problem.column),
            severity=Severity.NOTE if problem.is_unread else None,
            label=label,
        )


@cause("SCRIPT501", "source-nested-too-deeply", Severity.NOTE)
def source_nested_too_deeply(script: Script) -> Iterator[Finding]:
    """The script is nested too deeply to be checked.

    ## Why it matters
    This file was not searched for faults. Each elif and each operator of a long chain counts as a level; such chains
    are usually generated code.

    ## Fix
    Move generated code into a file of its own, to have the rest checked.

    The job itself needs no change.

    ## Example
        # before
        def lookup(x):
            if x == 0:
                return "a"
            elif x == 1:
                return "b"
            # ... and thousands more of these

        # after
        from generated_table import TABLE

        def lookup(x):
            return TABLE[x]
    """
    for source, depth in too_deep(script):
        yield Finding(
            f"file not checked: nested {depth} levels deep (limit: {MAX_DEPTH})",
            evidence=(Evidence(f"script.{source.path}", f"{depth} levels", f"at most {MAX_DEPTH}"),),
            where=Where(file=source.path, line=1, column=1),
            label="not checked",
        )
