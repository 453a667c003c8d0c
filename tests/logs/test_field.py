"""Logs as people post them, shortened and with other names, and what triage says first: fixtures/field.txt.

A case is `=== name | codes`, its text, and `--- file` before each part that stands in a file of its own. Where the log
leaves open which of several causes it was, any of the codes may lead; `@3` says who is blamed; `-` is a healthy log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Severity

FIELD = Path(__file__).parents[2] / "fixtures" / "field.txt"


EACH = 4
"""One in so many is looked at in every run."""


def _cases() -> Iterator[tuple[str, str, str]]:
    for part in re.split(r"^=== ", FIELD.read_text(), flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("\n")
        name, _, codes = head.partition(" | ")
        yield name, codes, text


@pytest.mark.parametrize(
    ("name", "codes", "text"),
    [
        pytest.param(*case, id=case[0], marks=[pytest.mark.slow] if number % EACH else [])
        for number, case in enumerate(_cases())
    ],
)
def test_a_log_of_the_field_is_read_rightly(tmp_path: Path, name: str, codes: str, text: str) -> None:
    files = re.split(r"^--- (\S+)\n", text, flags=re.MULTILINE)
    for file, part in zip(files[1::2] or ["job.txt"], files[2::2] or [text], strict=True):
        (tmp_path / file).write_text(part)
    report, _ = triaged([str(tmp_path)], Request(), started=time.time())
    assert not report.crashed, report.crashed
    if codes == "-":
        assert [f.code for f in report.findings if f.worst is Severity.ERROR] == []
        return
    expected, _, ranks = codes.partition("@")
    assert report.findings[0].code in expected.split(","), [f.code for f in report.findings]
    if ranks:
        assert list(report.findings[0].ranks) == [int(rank) for rank in ranks.split("+")]
