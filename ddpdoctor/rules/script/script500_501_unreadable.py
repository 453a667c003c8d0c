"""SCRIPT500, SCRIPT501: a file that Python cannot read, or that is nested too deeply to be judged."""

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
    """Python cannot read the script.

    ## Why it matters
    Every rank ends with `SyntaxError` before its first line runs, and under a launcher the message stands far above a
    `ChildFailedError`. Nothing else in the file was judged; of a notebook, the other cells were.

    ## Fix
    Mend the line, save the file as UTF-8, or rewrite what is Python 2. A newer Python may know syntax that this one does not.
    """
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    for source, problem in unreadable(script):
        told = problem.message
        if any(words in told for words in PYTHON_2):
            told += " (this looks like Python 2)"
        elif "f-string" in told and sys.version_info < (3, 12):
            told += " (Python 3.12 and newer allow more in f-strings)"
        if problem.is_unread:
            message = f"not judged: {told}; expected a script"
        else:
            message = f"{version} cannot read this file: {told}; expected Python 3 source in UTF-8, or with its encoding declared"
        yield Finding(
            message,
            evidence=(Evidence(f"script.{source.path}", problem.message, "Python 3 source"),),
            where=Where(file=source.path, line=problem.line, column=problem.column),
            severity=Severity.NOTE if problem.is_unread else None,
        )


@cause("SCRIPT501", "source-nested-too-deeply", Severity.NOTE)
def source_nested_too_deeply(script: Script) -> Iterator[Finding]:
    """The script is nested too deeply to be judged.

    ## Why it matters
    What is wrong in this file was not looked for. Long chains of elif and of operators count as levels; they are mostly in
    generated code.

    ## Fix
    Nothing has to be done for the job. Move generated code into a file of its own to have the rest judged.
    """
    for source, depth in too_deep(script):
        yield Finding(
            f"nested {depth} levels deep, so that the file was not judged: expected at most {MAX_DEPTH}",
            evidence=(Evidence(f"script.{source.path}", f"{depth} levels", f"at most {MAX_DEPTH}"),),
            where=Where(file=source.path, line=1, column=1),
        )
