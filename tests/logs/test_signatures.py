"""What every signature must be: an expression that Python and RE2 read alike, with a literal that is cheap to look for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ddpdoctor.facts.log import Log, LogLine, LogSource
from ddpdoctor.logs.context_patterns import CONTEXT_PATTERNS
from ddpdoctor.logs.required_literals import literals_of
from ddpdoctor.rules import load
from ddpdoctor.rules.log.signatures import matching

PATTERNS = sorted({(each.code, s) for each in load() for s in each.signatures} | set(CONTEXT_PATTERNS.items()))


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


LINES = [
    (code, line)
    for code, lines in json.loads((Path(__file__).parents[2] / "fixtures" / "log_lines.json").read_text()).items()
    for line in lines
]


@pytest.mark.parametrize(("code", "line"), LINES)
def test_lines_of_torch_nccl_and_launchers_show_their_cause(code: str, line: str) -> None:
    signatures = next(each.signatures for each in load() if each.code == code)
    log = Log(sources=(LogSource("job.txt"),), lines=(LogLine(0, 1, line),))
    assert matching(log, signatures)
