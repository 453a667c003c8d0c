"""mypy with the plugin refuses code that reads the words of a finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOGIC = """\
from ddpdoctor.findings import Finding
def quoted(found: Finding) -> bool: return "errno" in found.quote
def left_open(found: Finding) -> bool: return found.undetermined == ""
def same(one: Finding, two: Finding) -> bool: return one.identity == two.identity
def cut(found: Finding) -> str: return found.message.partition(": ")[2]
def searched(found: Finding | None) -> bool: return found is not None and "errno" in found.text
"""
REFUSED = [5, 6]
"""The lines that read words."""


def test_the_words_of_a_finding_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPY_CONFIG_FILE_DIR", "")  # mypy sets it
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nplugins = {ROOT / 'tests' / 'mypy_no_messages.py'}\n")
    (tmp_path / "logic.py").write_text(LOGIC)
    words = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache" / "words")]
    output, errors, _ = api.run([*words, str(tmp_path / "logic.py")])
    assert not errors
    refused = re.findall(r"logic\.py:(\d+): error: logic reads the words of a finding", output)
    assert [int(line) for line in refused] == REFUSED, output
