"""Right forms of training scripts really run on two ranks; wrong ones really do what their finding promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from script_runs import RIGHT, WRONG, header, start

pytestmark = pytest.mark.torch

SOME_RIGHT = ("collectives",)
SOME_WRONG = ("init_positional", "rank_branch_barrier")


def _slow_but(some: tuple[str, ...], paths: list[Path]) -> list[object]:
    marks = [() if path.stem in some else (pytest.mark.slow,) for path in paths]
    return [pytest.param(p, id=p.stem, marks=m) for p, m in zip(paths, marks, strict=True)]


@pytest.mark.parametrize("path", _slow_but(SOME_RIGHT, RIGHT))
def test_a_right_form_runs(path: Path, tmp_path: Path) -> None:
    for module in header(path, "needs").split():
        pytest.importorskip(module)
    for how in header(path, "run").split(", "):
        outcome = start(path, how, tmp_path)
        assert outcome.code == 0, outcome.output[-3000:]


@pytest.mark.parametrize("path", _slow_but(SOME_WRONG, [p for p in WRONG if header(p, "run")]))
def test_a_wrong_form_does_what_its_finding_promises(path: Path, tmp_path: Path) -> None:
    for how in header(path, "run").split(", "):
        outcome = start(path, how, tmp_path)
        assert re.search(header(path, "sees"), outcome.output, re.DOTALL), outcome.output[-3000:]
        assert outcome.code is not None
        assert (outcome.code != 0) == (header(path, "exit", "1") == "1"), outcome.output[-3000:]
