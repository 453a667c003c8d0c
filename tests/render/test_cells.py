"""Texts are cut to the columns of a terminal in time that grows with the columns."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ddpdoctor.render.cells import cut


@given(st.text(max_size=60), st.integers(0, 30))
def test_a_text_fits_and_is_marked_only_if_it_was_cut(text: str, room: int) -> None:
    shown = cut(text, room)
    assert cell_len(shown) <= room
    assert shown == text or not shown or shown.endswith("…")
    if cell_len(text) <= room and len(text) <= room:
        assert shown == text


@pytest.mark.parametrize("text", ["x" * 10**6, "日本" * 10**6, "e\u0301\u0301\u0301" * 10**6])
def test_a_long_text_costs_no_more_than_a_short_one(text: str) -> None:
    """One launch line of 30 KB once took minutes: it was measured again for each character that was taken away."""
    before = time.process_time()
    assert cell_len(cut(text, 80)) <= 80
    assert time.process_time() - before < 1
