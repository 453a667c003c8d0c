"""What every rule must have: a manual, cases that fire and stay silent, and silence on every healthy machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cases import CASES, KEYS, SITUATIONS, Case, all_cases, named, read
from launches import launch_of
from machines import FIXTURES, machine, machine_json, machine_names
from new_cause import FILL_IN
from script_cases import expected

from ddpdoctor.collectors.environ import relevant
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.variables import is_relevant
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import area_of, load

RULES = {r.code: r for r in load()}
MACHINE_CASES = all_cases("machine")
JUDGED = [
    code
    for code, r in RULES.items()
    if area_of(code) not in ("launch", "script", "log") and r.needs != ("launch",) and not r.is_of_logs
]


FIRING = [case for case in MACHINE_CASES if case.fires]
SILENT = [case for case in MACHINE_CASES if not case.fires]


def _patch(case: Case) -> dict[str, Any]:
    """The merge patch of a case over the facts of its machine."""
    patch: dict[str, Any] = json.loads(case.text or "{}")
    return patch


@cache
def _json_machine(name: str) -> Any:
    return machine(name)


def _judge(case: Case) -> Outcome:
    facts = machine(case.keys.get("on", "cpu_vm"), _patch(case))
    if "launch" in case.keys:
        facts = replace(facts, launch=launch_of(case.keys["launch"]))
    return judge(facts, [RULES[case.code]])


@pytest.mark.parametrize("case", FIRING, ids=lambda c: c.id)
def test_fires(case: Case) -> None:
    outcome = _judge(case)
    assert not outcome.crashed, outcome.crashed
    assert outcome.findings, f"{case.code} is silent: {outcome}"
    _expect(outcome.findings, case)


@pytest.mark.parametrize("case", SILENT, ids=lambda c: c.id)
def test_stays_silent(case: Case) -> None:
    outcome = _judge(case)
    assert not outcome.crashed, outcome.crashed
    assert not outcome.findings, [f.message for f in outcome.findings]
    assert bool(outcome.skipped) is ("skipped" in case.keys), outcome.skipped or "passed, not skipped"


def _expect(found: list[Finding], case: Case) -> None:
    expected = case.keys
    if "count" in expected:
        assert len(found) == int(expected["count"]), [f.message for f in found]
    first = found[0]
    if "message" in expected:
        assert expected["message"] in first.message
    if "severity" in expected:
        assert first.worst is Severity(expected["severity"])
    if "fix" in expected:
        assert (first.fix_command or "none") == expected["fix"]
    for key, value in case.where.items():
        assert getattr(first.where, key) == value, (key, first.where)
    if "ranks" in expected:
        assert list(first.ranks) == case.ranks


def _variables(value: Any) -> Iterator[dict[str, str]]:
    """Every table of environment variables in a patch or in a machine's facts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "variables":
                yield {name: text for name, text in inner.items() if text is not None}
            else:
                yield from _variables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _variables(inner)


@pytest.mark.parametrize("case", MACHINE_CASES, ids=lambda c: c.id)
def test_a_case_holds_only_variables_that_the_collector_gathers(case: Case) -> None:
    for variables in _variables(_patch(case)):
        _gathered(variables, case.source)


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_holds_only_variables_that_the_collector_gathers(name: str) -> None:
    for variables in _variables(machine_json(name)):
        _gathered(variables, f"fixtures/machines/{name}")


class _Asked(dict[str, str]):
    """A table of variables that remembers which names it is asked for."""

    names: ClassVar[set[str]] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def test_rules_ask_only_for_variables_that_the_collector_gathers() -> None:
    for name in machine_names():
        facts = _json_machine(name)
        if facts.environ is not None:
            environ = replace(facts.environ, variables=_Asked(facts.environ.variables))
            judge(replace(facts, environ=environ), RULES.values())
    assert _Asked.names, "no rule asked for a variable"
    lost = sorted(name for name in _Asked.names if not is_relevant(name))
    assert not lost, f"a rule asks for {lost}: add them to MEANINGS in ddpdoctor/facts/variables.py"


def _gathered(variables: dict[str, str], source: str) -> None:
    kept = relevant(variables)
    lost = sorted(variables.items() - kept.items())
    assert not lost, (
        f"{source}: collectors/environ.py does not gather {lost}: use a variable that it gathers, "
        "or add the name to MEANINGS in ddpdoctor/facts/variables.py"
    )


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
def test_nothing_is_left_to_fill_in(code: str) -> None:
    left = []
    for path in (RULES[code].module.replace(".", "/") + ".py", named(code)):
        file = FIXTURES.parent / path
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        left += [f"{path}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if FILL_IN in line]
    assert not left, "\n".join(left)


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
    cases = [case for case in MACHINE_CASES if case.code == code]
    assert any(case.fires for case in cases), f"{named(code)} has no `machine` case that fires ({RULES[code].module})"
    assert any(not case.fires for case in cases), f"{named(code)} has no `machine` case that stays silent"


ELSEWHERE = {
    "LOG016": "only a page: no line shows it",
    "PROBE010": "only `hang` shows it: tests/hang",
    **dict.fromkeys(("PROBE505", "PROBE506", "PROBE507", "PROBE508"), "only `rehearse` shows it: tests/rehearsal"),
    **dict.fromkeys(
        (f"SCRIPT{number}" for number in (563, 564, 565, 613, 615, 619, 623, *range(650, 660))),
        "only `rehearse` shows it: tests/rehearsal",
    ),
    "SCRIPT500": "a file that cannot be read: tests/cli/test_lint_scripts.py",
    "SCRIPT501": "a file that cannot be read: tests/cli/test_lint_scripts.py",
    "SCRIPT550": "a comment, not the script: tests/cli/test_lint_scripts.py",
}
"""Causes for which no case can be written in any view."""


def _fired() -> set[str]:
    """The codes that some case of some view expects."""
    logs = json.loads((SITUATIONS / "logs" / "expected.json").read_text()).values()
    found = {code for view in KEYS for case in all_cases(view) for code in case.codes}
    found |= {code for case in all_cases("script") for _, code in expected(case)}
    found |= {code for case in all_cases("job-log") for code in case.keys.get("first", "").split(", ")}
    return found | {code for log in logs for code in (log.get("first"), *log.get("consequences", ()))}


def test_every_cause_has_a_case_that_fires_in_some_view() -> None:
    missing = set(RULES) - _fired()
    assert missing == set(ELSEWHERE), [named(code) for code in sorted(missing ^ set(ELSEWHERE))]


@pytest.mark.parametrize("path", sorted(CASES.glob("*.txt")), ids=lambda p: p.stem)
def test_a_file_of_cases_belongs_to_a_cause_and_can_be_read(path: Path) -> None:
    assert path.stem.upper() in RULES, f"{path.name}: no cause has this code"
    assert read(path)
