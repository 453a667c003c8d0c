"""Right forms of training scripts really run on two ranks; wrong ones really do what their finding promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases import notes
from script_cases import RULES, judged
from script_runs import RIGHT, WRONG, expected, header, start

from ddpdoctor.app.patch import applied

pytestmark = pytest.mark.torch


def test_every_cause_of_a_script_is_shown_or_says_why_not() -> None:
    shown = {code for path in WRONG if header(path, "run") for code, _ in expected(path)}
    not_run = notes("not-run")
    missing = {each.code for each in RULES} - shown - set(not_run)
    assert not missing, (
        f"no form in fixtures/situations/scripts/wrong runs, and fixtures/cases has no `not-run: WHY`: {missing}"
    )
    assert not shown & set(not_run)


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


DO_NOT_RUN = {
    "exit_code_ignored": "its children fail, and the parent now says so",
    "nccl_without_gpu": "it still selects a GPU",
    "rank_zero_works_long": "it works longer than the few seconds that it gives itself",
    "slurm_scheme": "it waits for the variables of a launcher",
    "tcp_without_rank": "it waits for the variables of a launcher",
}
"""Corrected forms that end badly all the same."""


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in WRONG if p.stem not in DO_NOT_RUN], ids=lambda p: p.stem)
def test_a_corrected_form_runs(path: Path, tmp_path: Path) -> None:
    findings = judged(path.read_text(), RULES).findings
    edits = list(dict.fromkeys(edit for finding in findings for edit in finding.edits))
    if not edits or any(not finding.edits for finding in findings):
        pytest.skip("its author decides")
    corrected = tmp_path / "corrected" / path.name
    corrected.parent.mkdir()
    corrected.write_text(applied(path.read_text(), edits))
    outcome = start(corrected, header(path, "run").split(", ")[0] or "torchrun", tmp_path)
    assert outcome.code == 0, outcome.output[-3000:]
