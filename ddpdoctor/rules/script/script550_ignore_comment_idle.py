"""SCRIPT550: a comment that silences nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


@cause("SCRIPT550", "ignore-comment-idle", Severity.NOTE)
def ignore_comment_idle(script: Script) -> Iterator[Finding]:
    """A comment that was to silence a finding silences none.

    ## Why it matters
    The fault was mended, moved to another line, or its code is misspelled. A comment that stays behind would hide the same
    fault when it comes back.

    ## Fix
    Delete the comment, or put the code that is found on this line between its brackets.
    """
    for comment in script.idle:
        what = f"ignore[{comment.code}]" if comment.code else "ignore"
        yield Finding(
            f"# ddpdoctor: {what} silences nothing here: expected a finding that it is for",
            evidence=(Evidence("script.idle", what, "a finding on this line"),),
            where=Where(file=comment.path, line=comment.line, column=comment.column),
        )
