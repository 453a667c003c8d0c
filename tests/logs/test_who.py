"""Whom triage names, and whom it does not: fixtures/who.txt, logs with the prefixes of many launchers.

A case is `=== name | code | expected` and its text. `says` is a part of the message; `not` are causes that it must not give.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Role

WHO = Path(__file__).parents[2] / "fixtures" / "who.txt"
EACH = 4
"""One in so many is looked at in every run."""


def _cases() -> Iterator[tuple[str, str, dict[str, Any], str]]:
    for part in re.split(r"^=== ", WHO.read_text(), flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("\n")
        name, code, expected = head.split(" | ")
        yield name, code, json.loads(expected), text


@pytest.mark.parametrize(
    ("name", "code", "expected", "text"),
    [
        pytest.param(*case, id=case[0], marks=[pytest.mark.slow] if number % EACH else [])
        for number, case in enumerate(_cases())
    ],
)
def test_a_log_names_the_right_ones(tmp_path: Path, name: str, code: str, expected: dict[str, Any], text: str) -> None:
    (tmp_path / "job.txt").write_text(text)
    report, _ = triaged([str(tmp_path / "job.txt")], Request(), started=time.time())
    assert not report.crashed, report.crashed
    first = report.findings[0]
    assert first.code == code, [f.code for f in report.findings]
    assert expected.pop("says", "") in first.text
    causes = {f.code for f in report.findings if f.role is Role.CAUSE}
    assert not causes & set(expected.pop("not", ()))
    seen = {what: list(first.ranks) if what == "ranks" else getattr(first.where, what) for what in expected}
    assert seen == expected, first.text
