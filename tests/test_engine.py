"""The engine: a bug in one part does not affect the rest of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import launch_of
from machines import machine

from ddpdoctor.engine import judge
from ddpdoctor.rules import load


def test_a_bug_in_the_model_of_jobs_crashes_only_the_rules_that_take_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(launch: object) -> None:
        raise ZeroDivisionError("in the model of jobs")

    monkeypatch.setattr("ddpdoctor.launch.jobs.job_of_launch", broken)
    facts = replace(machine("cpu_vm"), launch=launch_of("torchrun --nproc_per_node 2 train.py"))
    rules = [each for each in load() if each.code in ("HOST004", "HOST010")]
    outcome = judge(facts, rules)
    assert [(each.code, each.error) for each in outcome.crashed] == [
        ("HOST004", "ZeroDivisionError: in the model of jobs")
    ]
    assert [*outcome.passed, *(each.code for each in outcome.skipped)] == ["HOST010"]
