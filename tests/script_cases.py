"""Cases for the rules of scripts: texts in fixtures/scripts/cases, several in one file, with the codes at their lines.

A line `# === what the script does` begins a case. `# expect: SCRIPT024` at the end of a line is a finding there; a case
without any must stay silent. `# launch: torchrun …` is the line that starts the script, as `train.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from machines import FIXTURES

from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.rules import Rule

CASES = FIXTURES / "scripts" / "cases"
EXPECT = re.compile(r"#\s*expect: (SCRIPT\d{3}(?:, SCRIPT\d{3})*)\s*$")
LAUNCH = re.compile(r"^# launch: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One text: `expected` are its findings as (line, code), `line` the launch line or ""."""

    family: str
    name: str
    text: str
    expected: frozenset[tuple[int, str]]
    line: str


def cases() -> list[Case]:
    """All cases, in their order."""
    return [each for path in sorted(CASES.glob("*.py")) for each in _of(path)]


def _of(path: Path) -> list[Case]:
    found = []
    for part in re.split(r"^# === ", path.read_text(), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        expected = {
            (number, code)
            for number, row in enumerate(text.splitlines(), start=1)
            if (match := EXPECT.search(row))
            for code in match[1].split(", ")
        }
        launch = LAUNCH.search(text)
        found.append(Case(path.stem, name.strip(), text, frozenset(expected), launch[1] if launch else ""))
    return found


def judged(text: str, rules: list[Rule], line: str = "", beside: tuple[SourceFile, ...] = ()) -> Outcome:
    """What the rules say of a script called train.py, started by `line`."""
    launch = None
    if line:
        from launches import launch_of

        launch = launch_of(line)
    script = Script(files=(SourceFile("train.py", text),), beside=beside)
    return judge(Facts(SCHEMA, "", "", launch=launch or Launch(), script=script), rules)
