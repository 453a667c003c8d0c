"""A log that takes too long to judge: the report covers its beginning, and says so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.app import triage
from ddpdoctor.app.request import Request
from ddpdoctor.findings import Report
from ddpdoctor.system.budget import within_budget

TRACEBACKS = 3000
"""Judged in 2 s or more."""


def judged(path: Path, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> Report:
    """The report if judging may take so many seconds, one number for each attempt."""
    left = list(seconds)
    monkeypatch.setattr(triage, "within_budget", lambda work, _: within_budget(work, left.pop(0)))
    report, _ = triage.triaged([str(path)], Request(), started=time.monotonic())
    assert not left
    return report


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    frame = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/w/t{1}.py", line {1}, in f{1}\n'
    frame += "[rank{0}]:     g({1})\n[rank{0}]: RuntimeError: NCCL error number {1}: unhandled system error\n"
    path.write_text("".join(frame.format(number % 8, number) for number in range(TRACEBACKS)))
    return path


def test_the_beginning_of_a_log_is_judged_that_takes_too_long(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(log, monkeypatch, 0.05, 60.0)
    assert report.failures[0].endswith("not examined within 0.05 s; the report covers the first 1000 and 100")
    assert report.findings
    assert report.exit_code(None) == 3


def test_less_is_judged_if_the_beginning_takes_too_long_as_well(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(log, monkeypatch, 0.02, 0.002, 60.0)
    assert report.failures[0].endswith("the report covers the first 50 and 5")


def test_nothing_is_judged_if_everything_takes_too_long(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(log, monkeypatch, 0.02, 0.002, 0.0005)
    assert report.failures[0].endswith("the report covers none of them")
    assert report.exit_code(None) == 3


def test_a_log_of_ordinary_size_is_judged_whole(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:4]))
    assert judged(log, monkeypatch, 60.0).failures == ()
