"""No text crashes a rule: real scripts cut, joined and mangled, and files made of any pieces of Python."""

from __future__ import annotations

import ast
import os
import random
from copy import deepcopy
from itertools import pairwise

import pytest
from cases import all_cases
from conftest import FULL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from script_cases import judged
from script_runs import RIGHT, WRONG

from ddpdoctor.engine import judge
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.rules import load

TIMES = 40 if os.environ.get("DDPDOCTOR_FULL") else 1
TEXTS = [path.read_text() for path in (*RIGHT, *WRONG)]
LINES = sorted({line for text in TEXTS for line in text.split("\n")})
RULES = load(("script",))


def _crashes(text: str) -> list[str]:
    script = Script(files=(SourceFile("train.py", text),))
    outcome = judge(Facts(SCHEMA, "", "", script=script), RULES)
    return [f"{each.code}: {each.error}" for each in outcome.crashed]


def _swapped(text: str, chance: random.Random) -> str:
    """One node of the tree in the place of another: always Python, mostly nonsense."""
    tree = ast.parse(text)
    nodes = [
        n for n in ast.walk(tree) if isinstance(n, ast.expr) and not isinstance(getattr(n, "ctx", None), ast.Store)
    ]
    for _ in range(3):
        one, other = chance.choice(nodes), deepcopy(chance.choice(nodes))  # a copy: no tree may hold itself
        for parent in ast.walk(tree):
            for name, value in ast.iter_fields(parent):
                if value is one:
                    setattr(parent, name, other)
                elif isinstance(value, list) and one in value:
                    value[value.index(one)] = other
    try:
        return ast.unparse(tree)
    except (RecursionError, ValueError, AttributeError, TypeError):  # an expression where only a name can stand
        return text


@pytest.mark.parametrize("seed", range(25 * TIMES))
def test_mangled_scripts_crash_no_rule(seed: int) -> None:
    chance = random.Random(seed)
    text = chance.choice(TEXTS)
    rows = text.split("\n")
    start = chance.randrange(len(rows))
    cut = "\n".join(rows[:start] + chance.sample(LINES, 3) + rows[start + chance.randrange(4) :])
    shuffled = "\n".join(chance.sample(rows, len(rows)))
    for each in (_swapped(text, chance), cut, shuffled, text[: chance.randrange(len(text))]):
        assert _crashes(each) == [], each


@settings(max_examples=20 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(LINES), max_size=40), st.text(max_size=20))
def test_any_lines_crash_no_rule(lines: list[str], text: str) -> None:
    assert _crashes("\n".join([*lines, text, *lines[::-1]])) == []


def test_mutated_scripts_crash_no_rule() -> None:
    rules = [rule for rule in RULES if "script" in rule.needs]
    dice = random.Random(20261121)
    texts = [case.text for case in all_cases("script")]
    for _ in range(20_000 if FULL else 60):
        rows = dice.choice(texts).splitlines()
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(rows))
            kind = dice.random()
            if kind < 0.3:
                del rows[at : at + dice.randint(1, 2)]
            elif kind < 0.6:
                rows.insert(at, dice.choice(dice.choice(texts).splitlines()))
            elif kind < 0.8:
                rows[at] = rows[at].replace(
                    *dice.choice([("rank", "x"), ("(", "(*"), ("=", "=="), ("dist.", ""), ("if ", "while ")])
                )
            rows = rows or ["import torch.distributed"]
        text = "\n".join(rows)
        outcome = judged(text, rules)
        assert not outcome.crashed, (text, outcome.crashed)
        for one, two in pairwise(sorted((e.line, e.column) for f in outcome.findings for e in f.edits)):
            assert one <= two
