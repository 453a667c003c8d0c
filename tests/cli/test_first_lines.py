"""Somebody who sees only the first five lines of a screen knows the cause, the place, and what to type next."""

from __future__ import annotations

from pathlib import Path

import pytest
from first_lines import LINES, SITUATIONS, Situation, missing, screen


@pytest.mark.torch
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.title.replace(" ", "-"))
def test_the_first_five_lines_say_it(situation: Situation, tmp_path: Path) -> None:
    lines = screen(situation, tmp_path)
    assert missing(situation, lines) == [], "\n".join(lines[:LINES])
