"""Whole logs in fixtures/situations, shortened and with other names: what triage says first of each, and whom it names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cases import Case, all_cases

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Report, Role, Severity

CASES = all_cases("job-log")
EACH = 4
"""One in so many is looked at in every run."""
PARAMETERS = [
    pytest.param(case, id=case.id, marks=[pytest.mark.slow] if number % EACH else [])
    for number, case in enumerate(CASES)
]


def _report(case: Case, folder: Path) -> Report:
    for name, text in (case.files or {"job.txt": case.text}).items():
        (folder / name).write_text(text)
    report, _ = triaged([str(folder) if case.files else str(folder / "job.txt")], Request(), started=time.monotonic())
    assert not report.crashed, report.crashed
    return report


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_log_names_the_right_cause_and_the_right_ranks(case: Case, tmp_path: Path) -> None:
    report = _report(case, tmp_path)
    if not case.fires:
        assert [f.code for f in report.findings if f.worst is Severity.ERROR] == []
        expected = case.keys["notes"].split(", ") if "notes" in case.keys else []
        assert sorted({f.code for f in report.findings}) == expected, "a rule that speaks on a healthy log"
        return
    first = report.findings[0]
    assert first.code in case.keys.get("first", case.code).split(", "), [f.code for f in report.findings]
    assert case.keys.get("message", "") in f"{first.text}\n{first.quote}"
    causes = {f.code for f in report.findings if f.role is Role.CAUSE}
    assert not causes & set(case.keys.get("not", "").split(", "))
    if "ranks" in case.keys:
        assert list(first.ranks) == case.ranks
    if "who" in case.keys:
        assert (first.culprit.phrase if first.culprit is not None else "none") == case.keys["who"]
    assert {name: getattr(first.where, name) for name in case.where} == case.where, first.message
