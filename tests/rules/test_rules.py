"""What every rule must have: a manual, cases that fire and stay silent, and silence on every healthy machine."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from machines import FIXTURES, machine, machine_names

from ddpdoctor.engine import Outcome, judge
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import Rule, area_of, load

RULES = {r.code: r for r in load()}
CASES = {p.stem.upper(): json.loads(p.read_text()) for p in sorted((FIXTURES / "rules").glob("*.json"))}
JUDGED = [
    code
    for code, r in RULES.items()
    if area_of(code) not in ("launch", "script", "log") and r.needs != ("launch",) and not r.is_of_logs
]


def _cases(kind: str) -> list[Any]:
    return [
        pytest.param(code, case, id=f"{code}-{case['name']}".replace(" ", "_"))
        for code, cases in CASES.items()
        for case in cases[kind]
    ]


@cache
def _json_machine(name: str) -> Any:
    return machine(name)


def _judge(code: str, case: dict[str, Any]) -> Outcome:
    return judge(machine(case.get("on", "cpu_vm"), case.get("patch", {})), [RULES[code]])


@pytest.mark.parametrize(("code", "case"), _cases("fires"))
def test_fires(code: str, case: dict[str, Any]) -> None:
    outcome = _judge(code, case)
    assert not outcome.crashed, outcome.crashed
    assert outcome.findings, f"{code} is silent: {outcome}"
    _expect(outcome.findings, case.get("expect", {}))


@pytest.mark.parametrize(("code", "case"), _cases("silent"))
def test_stays_silent(code: str, case: dict[str, Any]) -> None:
    outcome = _judge(code, case)
    assert not outcome.crashed, outcome.crashed
    assert not outcome.findings, [f.message for f in outcome.findings]
    assert bool(outcome.skipped) is case.get("skipped", False), outcome.skipped or "passed, not skipped"


def _expect(found: list[Finding], expected: dict[str, Any]) -> None:
    if "count" in expected:
        assert len(found) == expected["count"], [f.message for f in found]
    first = found[0]
    if "message" in expected:
        assert expected["message"] in first.message
    if "severity" in expected:
        assert first.worst is Severity(expected["severity"])
    if "fix_command" in expected:
        assert first.fix_command == expected["fix_command"]
    for key, value in expected.get("where", {}).items():
        assert getattr(first.where, key) == value, (key, first.where)
    if "ranks" in expected:
        assert list(first.ranks) == expected["ranks"]


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_gets_exactly_the_findings_that_its_fixture_expects(name: str) -> None:
    outcome = judge(_json_machine(name), RULES.values())
    assert not outcome.crashed, outcome.crashed
    listed = json.loads((FIXTURES / "machines" / "expected.json").read_text()).get(name, [])
    found = sorted({(f.code, f.where.gpu, f.worst.value) for f in outcome.findings}, key=repr)
    expected = sorted({(e["code"], e.get("gpu"), e["severity"]) for e in listed}, key=repr)
    assert found == expected, [f.message for f in outcome.findings]


@pytest.mark.parametrize("code", RULES)
def test_the_manual_is_complete(code: str) -> None:
    each = RULES[code]
    assert each.title.endswith("."), f"the first sentence of {code} is no sentence: {each.title!r}"
    assert len(each.why) > 40, f"{code}: '## Why it matters' is missing or empty"
    assert len(each.fix) > 10, f"{code}: '## Fix' is missing or empty"


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.candidates])
def test_the_candidates_of_a_cause_exist(code: str) -> None:
    assert set(RULES[code].candidates) <= RULES.keys()
    assert len(set(RULES[code].candidates)) == len(RULES[code].candidates)


@pytest.mark.parametrize("code", RULES)
def test_the_name_fits(code: str) -> None:
    each = RULES[code]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name)
    assert each.module.startswith(f"ddpdoctor.rules.{area_of(code)}.")
    prefix, numbers = code.rstrip("0123456789").lower(), _numbers(each.module.rpartition(".")[2])
    assert each.module.rpartition(".")[2].startswith(prefix), "a file is named by the codes in it"
    assert int(code[len(prefix) :]) in numbers
    if len(numbers) == 1:
        assert each.module.endswith(f".{code.lower()}_{each.name.replace('-', '_')}")
    else:
        siblings = {c for c, other in RULES.items() if other.module == each.module}
        assert {int(c[len(prefix) :]) for c in siblings} == numbers
    assert list({r.name for r in RULES.values()}).count(each.name) == 1


def _numbers(stem: str) -> set[int]:
    """The numbers that a file's name holds: gpu015_to_017_mig is 15, 16 and 17, env038_039_nccl_debug 38 and 39."""
    found: set[int] = set()
    names = re.match(r"[a-z]+((?:\d{3}_(?:to_)?)+)", stem)
    assert names is not None, stem
    for run in re.findall(r"\d{3}(?:_to_\d{3})?", names[1]):
        first, _, last = run.partition("_to_")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("code", JUDGED)
def test_has_cases(code: str) -> None:
    each: Rule = RULES[code]
    cases = CASES.get(code)
    assert cases is not None, f"fixtures/rules/{code.lower()}.json is missing ({each.module})"
    assert cases["fires"], f"{code} has no case that fires"
    assert cases["silent"], f"{code} has no case that stays silent"


def test_cases_belong_to_rules() -> None:
    assert not set(CASES) - set(RULES)
