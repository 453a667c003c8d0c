"""What every signature must be: an expression that Python and RE2 read alike, with a literal that is cheap to look for.

Each has real lines of a program in fixtures/cases: `log-line fires` show the cause, `silent` look alike and do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from cases import Case, all_cases, named

from ddpdoctor.engine import examine
from ddpdoctor.facts.log import Log, LogLine, LogSource
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Certainty
from ddpdoctor.logs.context_patterns import CONTEXT_PATTERNS
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.required_literals import literals_of
from ddpdoctor.rules import load
from ddpdoctor.rules.views import log_rules

SIGNATURES = {each.code: each.signatures for each in load() if each.signatures}
PATTERNS = sorted(
    {(code, s) for code, signatures in SIGNATURES.items() for s in signatures} | set(CONTEXT_PATTERNS.items())
)
CASES = all_cases("log-line")


@pytest.mark.parametrize(("owner", "pattern"), PATTERNS)
def test_a_signature_is_read_alike_everywhere_and_holds_a_literal(owner: str, pattern: str) -> None:
    re.compile(pattern)
    assert not re.search(r"\(\?[!=<](?!P)|\\\d", pattern.replace("(?P<", "(?:")), (
        "RE2 has no lookaround and no references"
    )
    assert min(map(len, literals_of(pattern))) >= 5, literals_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("abc(def|ghi)", ("abcdef", "abcghi")),
        ("(foo|ba)r baz", ("foor baz", "bar baz")),
        ("x?yz", ("yz",)),
        ("a(bc)+def", ("def",)),
        (r"one\d+three|four", ("three", "four")),
        ("[Dd]river", ("river",)),
    ],
)
def test_the_longest_demanded_text_is_found(pattern: str, literals: tuple[str, ...]) -> None:
    assert literals_of(pattern) == literals


def test_an_expression_that_demands_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="without any literal"):
        literals_of("a*|b")


def _shown_by(line: str, signatures: Iterable[str]) -> bool:
    return bool(matching_lines(Log(sources=(LogSource("job.txt"),), lines=(LogLine(0, 1, line),)), signatures))


@pytest.mark.parametrize("case", [case for case in CASES if case.fires], ids=lambda c: c.id)
def test_lines_of_torch_nccl_and_launchers_show_their_cause(case: Case) -> None:
    assert _shown_by(case.text, SIGNATURES.get(case.code, ())), f"no signature of {case.code} matches this line"


@pytest.mark.parametrize("case", [case for case in CASES if not case.fires], ids=lambda c: c.id)
def test_lines_that_look_alike_do_not_show_the_cause(case: Case) -> None:
    assert [s for s in SIGNATURES[case.code] if _shown_by(case.text, (s,))] == []


@pytest.mark.parametrize("code", SIGNATURES)
def test_every_signature_of_a_cause_matches_a_line_that_fires(code: str) -> None:
    lines = [case.text for case in CASES if case.code == code and case.fires]
    unshown = [s for s in SIGNATURES[code] if not any(_shown_by(line, (s,)) for line in lines)]
    assert unshown == [], f"{named(code)} has no `log-line fires` line for {unshown}"


@pytest.mark.parametrize("code", SIGNATURES)
def test_every_cause_with_signatures_has_a_silent_line(code: str) -> None:
    assert any(case.code == code and not case.fires for case in CASES), f"{named(code)} has no `log-line silent` line"


@pytest.mark.parametrize("code", SIGNATURES)
def test_what_a_finding_leaves_open_is_said_and_listed_alike(code: str) -> None:
    rules = load()
    for line in (case.text for case in CASES if case.code == code and case.fires):
        log = Log(sources=(LogSource("job.txt", lines=1),), lines=(LogLine(0, 1, line),))
        report = examine(
            Facts(schema=SCHEMA, collected_at="", hostname="", log=log), log_rules(rules), command="triage", started=0.0
        )
        assert not report.crashed
        for each in report.findings:
            assert "Undetermined" not in each.message
            assert set(each.candidates) <= {rule.code for rule in rules}
            assert not each.candidates or each.certainty is Certainty.CANDIDATES
            if each.undetermined:
                assert each.undetermined.startswith(("Either", "Unknown"))
                assert each.certainty in (Certainty.CANDIDATES, Certainty.LIKELY)
                named = set(re.findall(r"\b[A-Z]+\d{3}\b", each.undetermined.partition(": " + each.quote)[0]))
                assert named & {rule.code for rule in rules} <= set(each.candidates), each.text
