"""Cases of scripts: the lines at which they expect findings, and what the rules find in a text."""

from __future__ import annotations

import re

from cases import Case

from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.rules import Rule, load

RULES = [
    each
    for each in load(("script",))
    if "script" in each.needs and each.code not in ("SCRIPT500", "SCRIPT501", "SCRIPT550")
]
"""The rules that judge what a script does; the others are about unreadable files and about comments."""
EXPECT = re.compile(r"#\s*expect: (SCRIPT\d{3}(?:, SCRIPT\d{3})*)\s*$")


def expected(case: Case) -> set[tuple[int, str]]:
    """The findings that the text marks with `# expect: CODE`, as (line, code)."""
    return {
        (number, code)
        for number, row in enumerate(case.text.splitlines(), start=1)
        if (match := EXPECT.search(row))
        for code in match[1].split(", ")
    }


def judged(text: str, rules: list[Rule], line: str = "", beside: tuple[SourceFile, ...] = ()) -> Outcome:
    """What the rules find in a script called train.py, started by `line`."""
    launch = None
    if line:
        from launches import launch_of

        launch = launch_of(line)
    script = Script(files=(SourceFile("train.py", text),), beside=beside)
    return judge(Facts(SCHEMA, "", "", launch=launch or Launch(), script=script), rules)
