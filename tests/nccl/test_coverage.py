"""Every warning of NCCL's source ends in a finding: a cause that names it, or its whole text with its function."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from zlib import crc32

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Role

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs/nccl-coverage.md"
EACH = 1 if os.environ.get("DDPDOCTOR_FULL") else 29
"""One in so many warnings is triaged in every run."""


def _module() -> object:
    spec = importlib.util.spec_from_file_location("nccl_coverage", HERE / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nccl_coverage"] = module
    spec.loader.exec_module(module)
    return module


COVERAGE = _module()
NEWEST = [each for each in COVERAGE.FORMATS if each.is_in(COVERAGE.RELEASES[-1])]  # type: ignore[attr-defined]


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text() == COVERAGE.document(), "run: python tests/nccl/coverage.py > docs/nccl-coverage.md"  # type: ignore[attr-defined]


@pytest.mark.parametrize("each", NEWEST[::EACH], ids=lambda each: f"{each.function}-{crc32(each.text.encode())}")
def test_a_failure_after_a_warning_is_named_or_quotes_it(each: object, tmp_path: Path) -> None:
    warning = COVERAGE.line_of(each)  # type: ignore[attr-defined]
    who = "node-01:1884:1899 [0]"
    returned = f"{who} NCCL INFO init.cc:1402 (ncclCommInitRankFunc) -> 3\n{who} NCCL INFO group.cc:75 (ncclAsyncJobMain) -> 3\n"
    (tmp_path / "job.txt").write_text(f"[2026-05-05 06:16:47] {who} {warning}\n{returned}")
    report, _ = triaged([str(tmp_path / "job.txt")], Request(), started=time.monotonic())
    assert not report.crashed
    assert report.verdict.value != "pass"
    assert [f for f in report.findings if f.role is Role.CAUSE]
    if "LOG502" in {f.code for f in report.findings if f.role is Role.CAUSE}:
        assert any(warning.partition("NCCL WARN ")[2][:200].strip() in f.quote for f in report.findings)
