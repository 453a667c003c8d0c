"""Lines that somebody stressed with Markdown, and Slurm's lists of hosts, are read as before, in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.logs.tracebacks.reader import _unstressed
from ddpdoctor.privacy.host_names import LIST

_BEFORE = re.compile(r"(\*\*|__|`)(?P<text>[A-Za-z].*)\1\s*$")
"""The expression that did the same in quadratic time."""


@given(st.text("aB*_` :1", max_size=24))
def test_marks_around_a_line_are_removed_as_before(text: str) -> None:
    ends = {mark for mark in ("**", "__", "`") if text.rstrip().endswith(mark)}
    if len(ends) == 1 and "***" not in text and "___" not in text:
        assert _unstressed(text) == _BEFORE.sub(r"\g<text>", text)


@pytest.mark.parametrize("text", ["**a" * 300_000 + "**", "`" * 10**6, "__" * 10**6])
def test_a_line_of_marks_takes_no_longer_than_another(text: str) -> None:
    before = time.process_time()
    _unstressed(text)
    assert time.process_time() - before < 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu[001-003,7],login", [("gpu", "001-003,7")]),
        ("--nodelist=gpu-a[1-2]", [("gpu-a", "1-2")]),
        ("-wgpu[1-2]", [("wgpu", "1-2")]),
        ("a[1],b.c[2-4]", [("a", "1"), ("b.c", "2-4")]),
        ("12[3]", []),
    ],
)
def test_lists_of_hosts_are_found(text: str, found: list[tuple[str, str]]) -> None:
    assert LIST.findall(text) == found
