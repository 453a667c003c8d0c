"""Programs that are really rehearsed: the sick ones are named with their lines, the healthy ones are not."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from machines import FIXTURES

from ddpdoctor.app.rehearse import RehearsalOptions, rehearse_launch
from ddpdoctor.app.request import Request
from ddpdoctor.findings import Finding, Report

pytestmark = pytest.mark.torch

FOLDER = FIXTURES / "rehearsal"
PROGRAMS = sorted(FOLDER.glob("*.py"))
QUICK = (
    "ddp",
    "ring",
    "spawn",
    "validation_on_main",
    "last_batch",
    "needs_gpu",
    "divided_by_local_count",
)
"""Those that every run of the tests rehearses; the others are slow."""


def program(path: Path) -> object:
    return pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)


def header(path: Path, key: str) -> str | None:
    found = re.search(rf"^# {key}: (.+)$", path.read_text(), re.MULTILINE)
    return None if found is None else found[1]


def rehearsed(path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> Report:
    monkeypatch.chdir(FOLDER)
    launch = shlex.split(header(path, "launch") or "")
    report, _ = rehearse_launch(Request(launch=tuple(launch)), RehearsalOptions(seconds=60, **options))  # type: ignore[arg-type]
    return report


def lines(found: Finding) -> set[int]:
    own = {found.where.line} if found.where.line is not None else set()
    return own | {
        int(each.path.rpartition(":")[2]) for each in found.evidence if each.path.rpartition(":")[2].isdigit()
    }


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each rehearsal: others may run at the same time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_over(temporary: Path) -> list[str]:
    found = [str(each) for each in temporary.iterdir()]
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = each.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(temporary) in text:
            found.append(text)
    return found


@pytest.mark.parametrize("path", [program(p) for p in PROGRAMS if header(p, "expect")])
def test_sick(path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, *expected = (header(path, "expect") or "").split()
    before = {each.name: each.stat().st_mtime_ns for each in FOLDER.iterdir()}
    report = rehearsed(path, monkeypatch)
    found = [each for each in report.findings if each.code == code]
    assert found, [(f.code, f.message) for f in report.findings] + list(report.failures)
    assert {int(line) for line in expected} <= lines(found[0])
    assert report.exit_code(report.worst) == 1
    assert left_over(temporary) == []
    assert before == {each.name: each.stat().st_mtime_ns for each in FOLDER.iterdir()}


@pytest.mark.parametrize("path", [program(p) for p in PROGRAMS if not header(p, "expect") and not header(p, "cannot")])
def test_healthy(path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(FOLDER))
    report = rehearsed(path, monkeypatch)
    assert [(f.code, f.message) for f in report.findings] == []
    assert report.failures == ()
    assert report.verdict.value == "pass"
    assert left_over(temporary) == []
    assert sorted(os.listdir(FOLDER)) == before, "what the script writes is discarded"


def test_what_was_compared_is_said_and_files_of_the_rehearsal_are_not_among_it(monkeypatch: pytest.MonkeyPatch) -> None:
    report = rehearsed(FOLDER / "averaged_twice.py", monkeypatch)
    (row,) = [each.text for each in report.sections if each.title == "compared"]
    assert "gradients of 3 steps" in row
    assert "file" not in row
    assert "averaged_twice.py: training samples (no DataLoader)" in report.inputs[0].left_out


def test_what_did_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    report = rehearsed(FOLDER / "unreached.py", monkeypatch)
    (row,) = [each.text for each in report.sections if each.title == "never ran"]
    assert "unreached.py:11 all_reduce" in row
    assert "unreached.py:27 a branch on `dist.get_rank() == 7`" in row
    assert "not reached" in report.subject
    assert report.verdict.value == "pass"


@pytest.mark.parametrize("path", [program(p) for p in PROGRAMS if header(p, "cannot")])
def test_what_needs_a_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = rehearsed(path, monkeypatch)
    assert report.findings == ()
    assert f"could not rehearse beyond {header(path, 'cannot')}" in report.failures[0]
    assert report.exit_code(None) == 3
