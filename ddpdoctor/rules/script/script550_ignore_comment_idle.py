"""SCRIPT550: an ignore comment without a finding."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause


@cause("SCRIPT550", "ignore-comment-idle", Severity.NOTE)
def ignore_comment_idle(script: Script) -> Iterator[Finding]:
    """An ignore comment matches no finding.

    ## Why it matters
    The fault was fixed or moved to another line, or the code is misspelled. If the comment stays, it hides the same
    fault when it comes back.

    ## Fix
    Delete the comment, or write the code that is found on this line between its brackets.

    ## Example
        # before
        dist.init_process_group("nccl")  # ddpdoctor: ignore[SCRIPT013]

        # after
        dist.init_process_group("nccl")
    """
    for comment in script.idle:
        what = f"ignore[{comment.code}]" if comment.code else "ignore"
        yield Finding(
            f"# ddpdoctor: {what} matches no finding on this line",
            evidence=(Evidence("script.idle", what, "a finding on this line"),),
            where=Where(file=comment.path, line=comment.line, column=comment.column),
            label="delete this comment",
        )
