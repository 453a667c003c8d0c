"""Every rule of scripts speaks at the right line of its cases, and no rule speaks anywhere else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from script_cases import Case, cases, judged
from script_runs import WRONG

from ddpdoctor.app.patch import applied
from ddpdoctor.engine import Outcome
from ddpdoctor.rules import load
from ddpdoctor.scripts.interpreter import rank_evaluator

RULES = [each for each in load(("script",)) if "script" in each.needs and each.code < "SCRIPT500"]
CASES = cases()


@cache
def _outcome(case: Case) -> Outcome:
    return judged(case.text, RULES, case.line)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}".replace(" ", "_"))
def test_exactly_the_expected_findings(case: Case) -> None:
    outcome = _outcome(case)
    assert not outcome.crashed, outcome.crashed
    found = {(f.where.line, f.code) for f in outcome.findings}
    assert found == case.expected, [(f.code, f.where.line, f.message) for f in outcome.findings]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}".replace(" ", "_"))
def test_what_readers_keep_for_each_other_changes_no_finding(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that was kept must be the one that this rank, on this way, would have read by itself."""
    told = [(f.code, f.where.line, f.message) for f in _outcome(case).findings]
    monkeypatch.setattr(rank_evaluator, "recall", lambda *_: None)
    alone = judged(f"{case.text}\n", RULES, case.line)  # another text: nothing of the first reading is remembered
    assert told == [(f.code, f.where.line, f.message) for f in alone.findings]


@pytest.mark.parametrize("code", [each.code for each in RULES])
def test_every_rule_has_cases(code: str) -> None:
    speaking = [case for case in CASES if any(c == code for _, c in case.expected)]
    assert len(speaking) >= 2, f"{code} has {len(speaking)} cases that fire"
    families = {case.family for case in speaking}
    assert any(not case.expected for case in CASES if case.family in families), f"{code}: no silent case beside"


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}".replace(" ", "_"))
def test_every_edit_lies_inside_the_text(case: Case) -> None:
    rows = case.text.splitlines()
    for finding in _outcome(case).findings:
        assert re.search(r"expected", finding.message), finding.message
        for edit in finding.edits:
            assert (1, 1) <= (edit.line, edit.column) <= (edit.end_line, edit.end_column)
            assert edit.end_line <= len(rows) + 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}".replace(" ", "_"))
def test_a_correction_takes_its_finding_away_and_makes_no_other(case: Case) -> None:
    _corrected(case)


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_a_correction_mends_a_wrong_form(path: Path) -> None:
    _corrected(Case("wrong", path.stem, path.read_text(), frozenset(), ""))


def _corrected(case: Case) -> None:
    outcome = _outcome(case)
    before = Counter(f.code for f in outcome.findings)
    for finding in outcome.findings:
        if not finding.edits:
            continue
        text = applied(case.text, finding.edits)
        ast.parse(text)
        after = Counter(f.code for f in judged(text, RULES, case.line).findings)
        assert after[finding.code] < before[finding.code], text
        assert not after - before, text


WITHOUT = frozenset(f"SCRIPT0{number}" for number in (47, 48, 49, 69))
"""Codes whose correction is the author's decision: docs/rules says what to write, and --diff has nothing."""


@pytest.mark.parametrize("code", [each.code for each in RULES])
def test_every_other_rule_corrects_something(code: str) -> None:
    edits = [f.edits for case in CASES for f in _outcome(case).findings if f.code == code]
    assert any(edits) is (code not in WITHOUT)
