"""docs/fixes.md names threads in which a fix helped: the manual of the cause names the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpdoctor.rules import load

PAGE = Path(__file__).parents[2] / "docs" / "fixes.md"
ROWS = re.findall(r"^\| (\w+) \| `([\w-]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)


def test_the_page_counts_its_rows() -> None:
    assert f"{len(ROWS)} causes have such a thread." in PAGE.read_text()


@pytest.mark.parametrize(("code", "name", "threads"), ROWS, ids=[row[0] for row in ROWS])
def test_each_thread_is_in_the_manual_of_its_cause(code: str, name: str, threads: str) -> None:
    rule = next(each for each in load() if each.code == code)
    assert rule.name == name
    assert rule.fix
    assert [thread for thread in threads.split() if thread not in rule.doc] == []
