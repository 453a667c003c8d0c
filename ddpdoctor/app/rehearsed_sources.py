"""What reading finds in the files that a rehearsal ran: mistakes that a few steps on a few ranks did not show."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.engine import Outcome, extended
from ddpdoctor.findings import Evidence, Finding, Severity

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report

__all__ = ["with_read_sources"]

MOST_FILES = 40
READ = " (read in the source, not seen in the run)"


def with_read_sources(report: Report, files: Iterable[str], known: Facts, request: Request) -> Report:
    """The report with the errors and warnings of `lint` in these files, marked as read; causes that the run showed stay alone.

    Args:
        files: the user's files of which lines ran; the script of the launch line is read in any case.
        known: the facts with the launch line.
    """
    from ddpdoctor.app.lint_scripts import judge_scripts
    from ddpdoctor.collectors.script import find

    lines = known.launch.lines if known.launch is not None else ()
    own = [os.path.relpath(file) for file in sorted(files) if os.path.isfile(file)][:MOST_FILES]
    found = find(own)
    found.given.clear()
    judged = judge_scripts(found, lines, known, request)
    read = [finding for outcome in judged.outcomes for finding in outcome.findings if finding.severity in SHOWN]
    seen = {finding.code for finding in report.findings}
    report = replace(report, findings=tuple(_joined(finding, read) for finding in report.findings))
    outcome = Outcome(findings=[each.reworded(after=READ) for each in read if each.code not in seen])
    return extended(report, (outcome,), judged.rules, tuple(judged.failures))


SHOWN = (Severity.ERROR, Severity.WARNING)


def _joined(finding: Finding, read: Iterable[Finding]) -> Finding:
    """A finding of the run, with the places at which reading finds the same cause."""
    places = [each.where for each in read if each.code == finding.code and each.where.line != finding.where.line]
    evidence = tuple(Evidence(f"source.{at.file}:{at.line}", "the same cause, read in the source") for at in places)
    return replace(finding, evidence=(*finding.evidence, *evidence))
