"""Programs of training frameworks that are really rehearsed, sick and healthy: `make frameworks` installs what they need.

No file of `make test`: pytest collects it where it is named.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
from machines import FIXTURES

from ddpdoctor.app.rehearse import RehearsalOptions, rehearse_launch
from ddpdoctor.app.request import Request
from ddpdoctor.findings import Finding, Report

pytestmark = pytest.mark.torch

FOLDER = FIXTURES / "rehearsal" / "frameworks"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def header(path: Path, key: str) -> str | None:
    found = re.search(rf"^# {key}: (.+)$", path.read_text(), re.MULTILINE)
    return None if found is None else found[1]


def rehearsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("DS_BUILD_OPS", "0")
    assert importlib.util.find_spec(header(path, "needs") or "") is not None, "make frameworks installs it"
    launch = shlex.split(header(path, "launch") or "")
    request = Request(launch=tuple(launch), timeout=200)
    return rehearse_launch(request, RehearsalOptions(seconds=150))[0]


def lines(found: Finding) -> set[int]:
    own = {found.where.line} if found.where.line is not None else set()
    return own | {int(m[1]) for each in found.evidence if (m := re.search(r":(\d+)$", each.path))}


@pytest.mark.parametrize("path", [p for p in PROGRAMS if header(p, "expect")], ids=lambda path: path.stem)
def test_sick(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, *expected = (header(path, "expect") or "").split()
    report = rehearsed(path, monkeypatch)
    found = [each for each in report.findings if each.code == code]
    assert found, [(f.code, f.message) for f in report.findings] + list(report.failures)
    assert {int(line) for line in expected} <= set().union(*(lines(each) for each in found))
    assert report.exit_code(report.worst) == 1


@pytest.mark.parametrize("path", [p for p in PROGRAMS if not header(p, "expect")], ids=lambda path: path.stem)
def test_healthy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(FOLDER))
    report = rehearsed(path, monkeypatch)
    assert [(f.code, f.message) for f in report.findings] == []
    assert report.failures == ()
    assert report.verdict.value == "pass"
    assert sorted(os.listdir(FOLDER)) == before
