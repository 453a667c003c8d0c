"""Network findings about a launch line or a job file say in a few words at the caret what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import Case, all_cases
from launches import NODES, TRAIN, WRONG, lint, write_files

from ddpdoctor.app.lint import LintInputs, lint_inputs
from ddpdoctor.app.request import Request
from ddpdoctor.findings import Finding, Report

MOST_WORDS = 6
LINES = [case for case in (*WRONG, *NODES) if case.fires and case.code.startswith("NET")]
FILES = [case for case in all_cases("job-file") if case.fires and case.code.startswith("NET")]


def _labelled(report: Report, code: str) -> list[Finding]:
    findings = [finding for finding in report.findings if finding.code == code]
    return [finding for finding in findings if 1 <= len(finding.label.split()) <= MOST_WORDS]


@pytest.mark.parametrize("case", LINES, ids=lambda case: case.id)
def test_a_launch_line_has_a_short_label(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, case.files)
    report = lint(case.text.splitlines(), cwd=tmp_path)
    assert _labelled(report, case.code), [(f.code, f.label) for f in report.findings]


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.id)
def test_a_job_file_has_a_short_label(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"train.py": TRAIN, **case.files, case.keys["file"]: case.text}.items():
        (tmp_path / name).write_text(text)
    report, _ = lint_inputs(Request(), LintInputs(files=[case.keys["file"]], torch="2.13"))
    assert _labelled(report, case.code), [(f.code, f.label) for f in report.findings]
