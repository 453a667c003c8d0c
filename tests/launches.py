"""What lint reports for a launch line in tests, and the lines of all cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cases import Case, all_cases

from ddpdoctor.app.autocorrect import autocorrected
from ddpdoctor.app.lint_lines import environ_of, rules_of, with_machines
from ddpdoctor.app.request import Request
from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.engine import examine
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Report
from ddpdoctor.rules import Rule
from ddpdoctor.rules.views import line_rules
from ddpdoctor.system.machine import Machine

WRONG: list[Case] = [case for case in all_cases("launch-line") if case.fires]
LEGAL: list[Case] = [case for case in all_cases("launch-line") if not case.fires]
NODES: list[Case] = all_cases("launch-nodes")
TRAIN = """import os, sys
told = "rank", os.environ.get("RANK"), "of", os.environ.get("WORLD_SIZE"), sys.argv[1:]
os.write(1, (" ".join(map(str, told)) + "\\n").encode())
"""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """train.py and the case's own files."""
    for name, text in {"train.py": TRAIN, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def launch_of(line: str, *, cwd: str = "/nowhere") -> Launch:
    """The facts of one launch line, started in `cwd`."""
    return collect_launch(Machine(environ={}), None, [line], torch="2.13", cwd=cwd)


def lint(
    nodes: Sequence[str] = (),
    *,
    argv: Sequence[str] | None = None,
    cwd: Path | str | None = None,
    torch: str = "2.13",
    environ: Mapping[str, str] | None = None,
) -> Report:
    """What lint reports for one line, or for one line per node."""
    launch = collect_launch(Machine(environ=dict(environ or {})), argv, nodes, torch=torch, cwd=str(cwd or "/nowhere"))
    facts = Facts(SCHEMA, "2026-11-21T00:00:00Z", "here", environ=environ_of(launch), launch=launch)
    rules, machines = _rules()
    report = with_machines(examine(facts, rules, command="lint", started=0.0), facts, machines)
    return autocorrected(report, facts, rules)


@cache
def _rules() -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules for lines, and those for machines that lines show."""
    return rules_of(Request()), line_rules()
