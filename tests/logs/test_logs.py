"""Logs as people have them, in fixtures/situations/logs, and what triage says first of each."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from cases import SITUATIONS

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Certainty, Report, Role, Severity

LOGS = SITUATIONS / "logs"
EXPECTED: dict[str, dict[str, Any]] = json.loads((LOGS / "expected.json").read_text())


def report_of(*paths: Path) -> Report:
    """What triage says of these paths."""
    return triaged([str(path) for path in paths], Request(), started=time.monotonic())[0]


def _path(name: str) -> Path:
    return LOGS / name if (LOGS / name).is_dir() else LOGS / f"{name}.txt"


@pytest.mark.parametrize("name", [name for name, each in EXPECTED.items() if not each.get("healthy")])
def test_the_first_cause_of_a_log_is_named(name: str) -> None:
    expected = EXPECTED[name]
    report = report_of(_path(name))
    assert not report.crashed, report.crashed
    first = report.findings[0]
    assert (first.code, first.role) == (expected["first"], Role.CAUSE), [f.code for f in report.findings]
    if "ranks" in expected:
        assert list(first.ranks) == expected["ranks"]
    for key in ("host", "file", "line"):
        assert getattr(first.where, key) == expected.get(key, getattr(first.where, key)), first.where
    for each in report.findings:
        assert not each.undetermined or each.certainty in (Certainty.CANDIDATES, Certainty.LIKELY)
        assert not (each.role is Role.CONSEQUENCE and each.candidates), "something else explains it"
    for code in expected.get("consequences", []):
        follows = next(f for f in report.findings if f.code == code)
        assert follows.role is Role.CONSEQUENCE
        assert follows.caused_by == first.code


@pytest.mark.parametrize("name", [name for name, each in EXPECTED.items() if each.get("healthy")])
def test_a_healthy_log_has_no_error(name: str) -> None:
    report = report_of(_path(name))
    assert not report.crashed, report.crashed
    assert [f.code for f in report.findings if f.worst is Severity.ERROR] == []
    assert sorted({f.code for f in report.findings}) == EXPECTED[name].get("notes", []), (
        "a rule that speaks on a healthy log"
    )


def test_every_log_is_expected() -> None:
    assert {p.stem if p.is_file() else p.name for p in LOGS.iterdir()} - {"expected"} == set(EXPECTED)


@pytest.mark.parametrize("seed", range(400 if os.environ.get("DDPDOCTOR_FULL") else 12))
def test_no_mixture_of_lines_makes_a_rule_stumble(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    lines = [line for path in sorted(LOGS.rglob("*.txt")) for line in path.read_text().splitlines(keepends=True)]
    for number in range(dice.randrange(1, 4)):
        chosen = [dice.choice(lines) for _ in range(dice.randrange(300))]
        name = dice.choice(["rank{}.txt", "node{}.txt", "job{}.txt", "attempt_0/{}/stderr.log"]).format(number)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("".join(chosen))
    report = report_of(tmp_path)
    assert not report.crashed, report.crashed
    if any(each.worst is Severity.ERROR for each in report.findings):
        assert report.findings[0].role is Role.CAUSE
