"""Texts of rules about hosts that a case file cannot hold."""

from __future__ import annotations

import pytest
from machines import machine

from ddpdoctor.engine import judge
from ddpdoctor.rules import cause_of, load


@pytest.mark.parametrize("hard", [2048, 4096, 65_536, 524_288])
def test_the_fix_of_open_files_names_the_number_of_its_command(hard: int) -> None:
    load()
    facts = machine("cpu_vm", {"host": {"limits": {"open_files": {"soft": 64, "hard": hard}}}})
    (found,) = judge(facts, [cause_of("HOST004").rule]).findings
    command = f"ulimit -n {min(hard, 65_536)}"
    assert found.fix_command == command
    assert command in found.fix
