"""CHANGELOG.md keeps to Keep a Changelog's headings and to one short sentence per change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
MOST_WORDS = 25
WIDEST = 130


def _entries() -> list[str]:
    """Every entry as one line, without its bullet."""
    found: list[str] = []
    is_open = False
    for line in TEXT.splitlines():
        if line.startswith(("- ", "* ")):
            found.append(line[2:])
            is_open = True
        elif is_open and line.startswith("  "):
            found[-1] += f" {line.strip()}"
        else:
            is_open = False
    return found


def test_headings_are_those_of_keep_a_changelog() -> None:
    headings = [line for line in TEXT.splitlines() if line.startswith("#")]
    assert headings[0] == "# Changelog"
    assert headings[1].startswith("## ")
    for heading in headings[1:]:
        if heading.startswith("## "):
            assert re.fullmatch(r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?", heading), heading
        else:
            assert heading.startswith("### "), heading
            assert heading.removeprefix("### ") in KINDS, heading


def test_lines_below_a_kind_are_entries() -> None:
    body = re.split(r"^## .*\n", TEXT, flags=re.M)[1:]
    for line in "\n".join(body).splitlines():
        assert not line or line.startswith(("### ", "- ", "  ")), line


def test_lines_fit() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > WIDEST] == []


def test_there_are_entries_and_none_twice() -> None:
    entries = _entries()
    assert entries
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize("entry", _entries(), ids=lambda entry: entry[:60])
def test_an_entry_is_one_short_sentence(entry: str) -> None:
    words = len(entry.split())
    assert words <= MOST_WORDS, f"{words} words: {entry}"
    assert re.match(r"[A-Z`]", entry), entry
    assert entry.endswith("."), entry
