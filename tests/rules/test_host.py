"""Texts of rules about hosts that a case file cannot hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines import machine

from ddpdoctor.engine import judge
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.host import Host, Limits
from ddpdoctor.rules import area_of, cause_of, load


@pytest.mark.parametrize("hard", [2048, 4096, 65_536, 524_288])
def test_the_fix_of_open_files_names_the_number_of_its_command(hard: int) -> None:
    load()
    facts = machine("cpu_vm", {"host": {"limits": {"open_files": {"soft": 64, "hard": hard}}}})
    (found,) = judge(facts, [cause_of("HOST004").rule]).findings
    command = f"ulimit -n {min(hard, 65_536)}"
    assert found.fix_command == command
    assert command in found.fix


@pytest.mark.parametrize("name", ["cpu_vm", "h100x8_sxm_healthy", "launcher_salloc_shell"])
def test_no_rule_passes_on_what_could_not_be_read(name: str) -> None:
    facts = replace(machine(name), host=Host(gaps=(Gap("host.extension_locks", "the folder did not answer"),)))
    rules = [each for each in load() if area_of(each.code) == "host" and "nodes" not in each.wants]
    outcome = judge(facts, rules)
    assert (outcome.passed, outcome.findings, outcome.crashed) == ([], [], [])
    unknown = {each.code for each in outcome.skipped if each.unanswered}
    assert {"HOST002", "HOST004", "HOST005", "HOST007", "HOST008", "HOST009", "HOST014", "HOST501"} <= unknown


def test_a_gap_is_the_reason_of_the_skip() -> None:
    gaps = (Gap("host.limits", "the limits did not answer"), Gap("host.cgroup", "no control group", Why.NOT_HERE))
    facts = machine("cpu_vm")
    assert facts.host is not None
    rules = {each.code: each for each in load()}
    without_group = replace(facts, host=replace(facts.host, cgroup=None, gaps=gaps[1:]))
    assert judge(without_group, [rules["HOST005"]]).passed == ["HOST005"], "the limit of processes was read"
    without_both = replace(facts, host=replace(facts.host, cgroup=None, limits=Limits(), gaps=gaps))
    (skipped,) = judge(without_both, [rules["HOST005"]]).skipped
    assert skipped.reason == "the limits did not answer"
