"""The engine: a bug in one part does not affect the rest of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from launches import launch_of
from machines import machine

from ddpdoctor.engine import judge
from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.findings import Evidence, Finding
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


def test_what_a_rule_found_before_it_could_not_look_further_stays_found() -> None:
    (rule,) = [each for each in load() if each.code == "HOST010"]

    def check(**sections: object) -> Iterator[Finding]:
        yield Finding("GPU 0 is broken", (Evidence("gpu.devices[0]", "broken"),))
        raise CannotLook("no file shows gpu.devices[1]")

    def blind(**sections: object) -> Iterator[Finding]:
        raise CannotLook("no file shows gpu.devices[0]")
        yield

    found = judge(machine("cpu_vm"), [replace(rule, check=check)])
    assert ([finding.code for finding in found.findings], found.skipped) == (["HOST010"], [])
    nothing = judge(machine("cpu_vm"), [replace(rule, check=blind)])
    assert (nothing.findings, [skip.reason for skip in nothing.skipped]) == ([], ["no file shows gpu.devices[0]"])
