"""`make cause` writes files that load and are found, and that the tests refuse until they are completed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cases import CASES, all_cases, read
from new_cause import FILL_IN, ROOT, files_of

NEW = [("HOST", ""), ("GPU", "log"), ("LAUNCH", ""), ("SCRIPT", ""), ("LOG", ""), ("ENV999", "machine"), ("PROBE", "")]


@pytest.mark.parametrize(
    ("code", "name", "view", "error"),
    [
        ("HOSTS", "a-pattern", "", "expected ENV, LAUNCH, HOST"),
        ("host", "a-pattern", "", "expected ENV, LAUNCH, HOST"),
        ("HOST12", "a-pattern", "", "alone or with three digits"),
        ("HOST500", "a-pattern", "", "this code is taken"),
        ("HOST019", "a-pattern", "", "expected a number from 500 up"),
        ("HOST", "Pattern", "", "lower-case words with hyphens"),
        ("HOST", "", "", "lower-case words with hyphens"),
        ("HOST", "../etc-passwd", "", "lower-case words with hyphens"),
        ("HOST", "shm-too-small-for-nccl", "", "HOST001 has this name"),
        ("LOG", "a-pattern", "machine", "expected log for LOG"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(code: str, name: str, view: str, error: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "new_cause.py", code, name, "--view", view],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("code", "view"), NEW)
def test_the_files_of_a_new_cause_load_and_are_to_be_filled_in(code: str, view: str, tmp_path: Path) -> None:
    rule, cases = files_of(code, "pattern-of-a-test", view).items()
    assert not Path(ROOT, rule[0]).exists()
    assert FILL_IN in rule[1]
    (tmp_path / CASES.name).mkdir()
    path = tmp_path / CASES.name / Path(cases[0]).name
    path.write_text(cases[1])
    assert {case.fires for case in read(path)} == {True, False}
    assert cases[1].count(FILL_IN) >= 2
    (tmp_path / "new.py").write_text(rule[1])
    check = "from ddpdoctor.rules import load, loaded; import new; print([c.rule.name for c in loaded()][-1])"
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )
    assert done.stdout.strip() == "pattern-of-a-test", done.stderr


def test_an_area_takes_the_next_free_number_from_500_up() -> None:
    (rule, _) = files_of("SCRIPT", "pattern-of-a-test")
    assert rule == "ddpdoctor/rules/script/script502_pattern_of_a_test.py"
    assert all_cases("machine")


@pytest.mark.parametrize(
    ("area", "examined"),
    [
        ("SCRIPT", "judged('import torch.distributed as dist\\ndist.barrier()\\n', rules)"),
        ("LAUNCH", "judge(replace(FACTS, launch=collect_launch(Machine(), ['torchrun', 'train.py'], ())), rules)"),
    ],
)
def test_the_look_of_a_new_cause_can_find_something(area: str, examined: str, tmp_path: Path) -> None:
    (_, text), _ = files_of(area, "pattern-of-a-test").items()
    looking = text.replace("is_wrong = False", "is_wrong = True").replace(
        f"{FILL_IN}: such as dist.barrier", "dist.barrier"
    )
    (tmp_path / "new.py").write_text(looking)
    (tmp_path / "try_it.py").write_text(
        "from dataclasses import replace\n"
        "import new\n"
        "from script_cases import judged\n"
        "from ddpdoctor.collectors.launch import collect_launch\n"
        "from ddpdoctor.engine import judge\n"
        "from ddpdoctor.facts.record import SCHEMA, Facts\n"
        "from ddpdoctor.system.machine import Machine\n"
        "FACTS = Facts(SCHEMA, '', '')\n"
        "rules = [new.pattern_of_a_test.rule]\n"
        f"print([finding.name for finding in {examined}.findings])\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "try_it.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{tmp_path}"},
    )
    assert done.stdout.strip() == "['pattern-of-a-test']", done.stderr
