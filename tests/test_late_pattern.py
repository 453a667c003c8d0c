"""A pattern that is compiled late is used as any other, and is not compiled before."""

from __future__ import annotations

import re

import pytest

from ddpdoctor.late_pattern import pattern


def test_it_matches_as_a_compiled_one() -> None:
    late = pattern(r"(?P<name>[a-z]+)=(?P<value>\d+)", re.IGNORECASE)
    compiled = re.compile(r"(?P<name>[a-z]+)=(?P<value>\d+)", re.IGNORECASE)
    text = "Rank=3, size=8"
    assert [m.groupdict() for m in late.finditer(text)] == [m.groupdict() for m in compiled.finditer(text)]
    assert late.sub(r"\1", text) == compiled.sub(r"\1", text) == "Rank, size"
    assert (late.pattern, late.flags, late.groups) == (compiled.pattern, compiled.flags, compiled.groups)
    assert late.fullmatch("rank=3") is not None
    assert late.match(text, 1) is not None


def test_it_is_compiled_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    original = re.compile
    monkeypatch.setattr(
        re, "compile", lambda expression, flags=0: compiled.append(expression) or original(expression, flags)
    )
    late = pattern("first-used")
    assert compiled == []
    assert late.search("x first-used")
    assert late.search("nothing") is None
    assert late.fullmatch("first-used")
    assert compiled == ["first-used"]


def test_an_error_shows_when_it_is_used() -> None:
    with pytest.raises(re.error):
        pattern("(").search("")
    with pytest.raises(AttributeError):
        pattern("a").nothing  # type: ignore[attr-defined]  # noqa: B018
