"""What only the failed run has: against runs that the user names, or against completed jobs of the same name."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.app.request import Request, seconds_left
from ddpdoctor.app.triage import DEFAULT_TRIAGE_SECONDS, triaged
from ddpdoctor.collectors.log.run_lines import features_of
from ddpdoctor.examined import ExaminedJob, Verdict
from ddpdoctor.findings import Finding, Report, Role, Severity
from ddpdoctor.logs.run_differences import run_differences
from ddpdoctor.privacy.reports import without_secrets
from ddpdoctor.render.words import listed
from ddpdoctor.wording import counted

__all__ = ["compared_in_folder", "compared_with_good"]

MOST_GOOD_JOBS = 4
_NUMBERS = re.compile(r"\d+")


def compared_with_good(
    report: Report, paths: Sequence[str], good: Sequence[str], request: Request, *, started: float
) -> Report:
    """The report with the differences between these runs and the `good` ones."""
    deadline = time.monotonic() + seconds_left(request, DEFAULT_TRIAGE_SECONDS)
    judged, _ = triaged(good, request, started=started)
    unread = tuple(
        f"read {source.path} of --good: {source.reason}" for source in judged.inputs if not source.is_understood
    )
    names = [source.path for source in judged.inputs if source.is_understood]
    if not names:
        return replace(report, failures=(*report.failures, *(unread or ("read --good: no log there",))))
    if not {source.path for source in report.inputs} - set(names):
        return replace(report, failures=(*report.failures, "compare with --good: these are the logs of the failed run"))
    runs = [features_of(names, deadline)]
    mine = features_of(paths, deadline, without=frozenset(names))
    differences = run_differences(mine, runs, _ends(report.findings), _blamed(report.findings))
    text = ", ".join(good) + _doubt(judged)
    return without_secrets(replace(report, differences=differences, compared_with=text))


def compared_in_folder(report: Report, request: Request) -> Report:
    """The report with the differences between its worst job and completed jobs of the same name, where there are such."""
    failed, good = _alike(report.jobs)
    files = _files_of_jobs(report)
    if failed is None or not files.get(failed.name):
        return report
    mine = files[failed.name]
    others = [names for each in good if (names := files.get(each.name)) and not set(names) & set(mine)]
    if not others:
        return report
    deadline = time.monotonic() + seconds_left(request, DEFAULT_TRIAGE_SECONDS)
    findings = [finding for finding in report.findings if finding.job == failed.name]
    runs = [features_of(names, deadline) for names in others]
    differences = run_differences(features_of(mine, deadline), runs, _ends(findings), _blamed(findings))
    text = f"the completed {listed([each.name for each in good])}"
    return without_secrets(replace(report, differences=differences, compared_with=text))


def _alike(jobs: Sequence[ExaminedJob]) -> tuple[ExaminedJob | None, list[ExaminedJob]]:
    """The worst job that failed, and completed ones whose names differ from its name only in numbers."""
    for job in jobs:
        if job.outcome == "failed":
            name = _NUMBERS.sub("#", job.name)
            good = [o for o in jobs if o.outcome == "completed" and o is not job and _NUMBERS.sub("#", o.name) == name]
            if good:
                return job, good[:MOST_GOOD_JOBS]
    return None, []


def _files_of_jobs(report: Report) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for source in report.inputs:
        if source.job is not None and source.is_understood:
            files.setdefault(source.job, []).append(source.path)
    return files


def _doubt(judged: Report) -> str:
    """A remark if a run that is called good failed."""
    if judged.verdict is not Verdict.FAIL:
        return ""
    causes = [finding for finding in judged.findings if finding.role is Role.CAUSE and finding.worst is Severity.ERROR]
    codes = listed(sorted({cause.code for cause in causes}))
    return f" (which failed too: {counted(len(causes), 'cause')}, {codes})"


def _ends(findings: Sequence[Finding]) -> Mapping[str, int]:
    """For each file, the first line that is evidence of a cause: what is below it follows from the failure."""
    ends: dict[str, int] = {}
    for finding in findings:
        if finding.role is Role.CAUSE and finding.worst is Severity.ERROR:
            for each in finding.evidence:
                name, _, number = each.path.rpartition(":")
                if name and number.isdigit():
                    ends[name] = min(int(number), ends.get(name, int(number)))
    return ends


def _blamed(findings: Sequence[Finding]) -> frozenset[str]:
    return frozenset(
        finding.where.host for finding in findings if finding.role is Role.CAUSE and finding.where.host is not None
    )
