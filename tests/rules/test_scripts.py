"""Every rule of scripts speaks at the right line of its cases, and no rule speaks anywhere else."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from cases import Case, all_cases, named, notes
from script_cases import RULES, expected, judged
from script_runs import WRONG

from ddpdoctor.app.patch import applied
from ddpdoctor.engine import Outcome
from ddpdoctor.rules import Rule, load
from ddpdoctor.scripts.interpreter import rank_evaluator

CASES = all_cases("script")


@cache
def _outcome(case: Case) -> Outcome:
    return judged(case.text, RULES, case.keys.get("launch", ""))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_exactly_the_expected_findings(case: Case) -> None:
    outcome = _outcome(case)
    assert not outcome.crashed, outcome.crashed
    found = {(f.where.line, f.code) for f in outcome.findings}
    assert found == expected(case), [(f.code, f.where.line, f.message) for f in outcome.findings]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_what_readers_keep_for_each_other_changes_no_finding(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that was kept must be the one that this rank, on this way, would have read by itself."""
    told = [(f.code, f.where.line, f.message) for f in _outcome(case).findings]
    monkeypatch.setattr(rank_evaluator, "recall", lambda *_: None)
    another = f"{case.text}\n"  # nothing of the first reading is remembered
    alone = judged(another, RULES, case.keys.get("launch", ""))
    assert told == [(f.code, f.where.line, f.message) for f in alone.findings]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_case_stands_in_the_file_of_its_cause(case: Case) -> None:
    marked = {code for _, code in expected(case)}
    assert bool(marked) is case.fires, f"{case.source}: a case that fires marks lines with `# expect: CODE`"
    assert not case.code or marked <= {case.code}, f"{case.source}: several causes belong to fixtures/situations"


@pytest.mark.parametrize("code", [each.code for each in RULES])
def test_every_rule_has_cases(code: str) -> None:
    firing = [case for case in CASES if any(c == code for _, c in expected(case))]
    assert len(firing) >= 2, f"{named(code)} has {len(firing)} `script` cases that fire: two are needed"
    assert any(case.code == code and not case.fires for case in CASES), f"{named(code)} has no silent `script` case"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_every_edit_lies_inside_the_text(case: Case) -> None:
    rows = case.text.splitlines()
    for finding in _outcome(case).findings:
        for edit in finding.edits:
            assert (1, 1) <= (edit.line, edit.column) <= (edit.end_line, edit.end_column)
            assert edit.end_line <= len(rows) + 1


def _count(text: str) -> int:
    """The words of a text; code in backticks is one word."""
    return len(re.sub(r"`[^`]*`", "code", text).split())


def _sentences(text: str) -> int:
    """The sentences of a text; code in backticks has none, and a text that ends in an error message is one."""
    return len(re.findall(r"[.!?](?= |$)", re.sub(r"`[^`]*`", "code", text.rstrip(".") + ".")))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_finding_is_read_in_seconds(case: Case) -> None:
    """A headline of at most 16 words, a caret text of at most 8, one sentence that says what to do."""
    for finding in _outcome(case).findings:
        assert _count(finding.message) <= 16, finding.message
        assert 1 <= _count(finding.label) <= 8, (finding.code, finding.label)
        assert not re.search(r"\bexpected\b|\.$", finding.message), finding.message
        assert _sentences(finding.fix) == 1, finding.fix


@pytest.mark.parametrize("rule", load(("script",)), ids=lambda r: r.code)
def test_a_manual_page_has_an_example_and_is_short(rule: Rule) -> None:
    assert re.fullmatch(r"# before\n.+\n\n *# after\n.+", rule.section("Example"), re.DOTALL), rule.code
    assert _count(rule.title) <= 16, rule.title
    assert 1 <= _sentences(rule.why) <= 2, rule.why
    assert _sentences(rule.fix) == 1, rule.fix


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_the_right_code_of_an_example_is_not_found_again(rule: Rule) -> None:
    right = textwrap.dedent("    " + rule.section("Example")).partition("# after\n")[2]
    ast.parse(right)
    outcome = judged(f"import os\nimport torch\nimport torch.distributed as dist\n\n{right}", RULES)
    assert not outcome.crashed
    assert rule.code not in {f.code for f in outcome.findings}, right


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_correction_takes_its_finding_away_and_makes_no_other(case: Case) -> None:
    _corrected(case)


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_a_correction_mends_a_wrong_form(path: Path) -> None:
    _corrected(Case("", "script", True, path.stem, path.read_text(), source=str(path)))


def _corrected(case: Case) -> None:
    outcome = _outcome(case)
    before = Counter(f.code for f in outcome.findings)
    for finding in outcome.findings:
        if not finding.edits:
            continue
        text = applied(case.text, finding.edits)
        ast.parse(text)
        after = Counter(f.code for f in judged(text, RULES, case.keys.get("launch", "")).findings)
        assert after[finding.code] < before[finding.code], text
        assert not after - before, text


@pytest.mark.parametrize("code", [each.code for each in RULES])
def test_every_other_rule_corrects_something(code: str) -> None:
    edits = [f.edits for case in CASES for f in _outcome(case).findings if f.code == code]
    if any(edits):
        assert code not in notes("not-corrected")
    else:
        assert code in notes("not-corrected"), (
            f"{code} has no edits: add them, or `not-corrected: WHY` to {named(code)}"
        )
