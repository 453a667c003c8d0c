"""Mutated and random launch lines: every rule answers, whatever the line holds."""

from __future__ import annotations

import random

from conftest import FULL
from launches import LEGAL, NODES, WRONG, lint

from ddpdoctor.facts.torchrun_options import NEWEST, torchrun_options

LINES = 200_000 if FULL else 600
CHARACTERS = "'\"\\$(){}`;&|<>#\n=- \u00a0–“”\x00\x01é漢0129:,."
FLAGS = [flag for option in torchrun_options(NEWEST) for flag in option.flags]
SEEDS = [line for case in (*LEGAL, *WRONG, *NODES) for line in case.text.splitlines()]


def _mutated(dice: random.Random, line: str) -> str:
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(line) + 1)
        kind = dice.random()
        if kind < 0.3:
            line = line[:at] + dice.choice(CHARACTERS) + line[at:]
        elif kind < 0.5:
            line = line[:at] + line[at + dice.randint(1, 6) :]
        elif kind < 0.7:
            value = dice.choice(["", "=", " "]) + dice.choice(["", "1", "x", "0", "a:b", "$X"])
            line = f"{line[:at]} {dice.choice(FLAGS)}{value} {line[at:]}"
        elif kind < 0.8:
            line = line[:at] + dice.choice(SEEDS)[at:]
        elif kind < 0.9:
            line = "".join(chr(dice.choice((dice.randrange(32, 127), dice.randrange(0xD800)))) for _ in range(30))
        else:
            words = line.split(" ")
            dice.shuffle(words)
            line = " ".join(words)
    return line


def test_no_line_crashes_a_rule() -> None:
    dice = random.Random(20261121)
    for _ in range(LINES):
        lines = [_mutated(dice, dice.choice(SEEDS)) for _ in range(dice.choice((1, 1, 1, 2)))]
        report = lint(lines, torch=dice.choice(("2.13", "2.4", "1.13")))
        assert not report.crashed, (lines, report.crashed)
