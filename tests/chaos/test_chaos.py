"""Faults at random moments: 60 runs of the cheap commands, with DDPDOCTOR_FULL=1 1,000 of all; none may break the contract."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.__main__ import plan
from chaos.commands import COMMANDS, QUICK, Materials
from chaos.faults import FAULTS, Fault
from chaos.running import Runner

FULL = bool(os.environ.get("DDPDOCTOR_FULL"))
RUNS = 1000 if FULL else 60
SEED = int(os.environ.get("DDPDOCTOR_CHAOS_SEED", "1"))
"""Another seed is another series of runs; the same seed repeats it."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory(prefix="chaos_") as name:  # not tmp_path: other users may not enter its parents
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "materials").mkdir()
        materials = Materials(folder / "materials")
        yield Runner(materials, folder)


@pytest.mark.parametrize("number", range(RUNS))
def test_a_fault_at_any_moment_breaks_no_promise(number: int, runner: Runner) -> None:
    command, fault = plan(number, SEED, COMMANDS if FULL else QUICK)
    outcome = runner.run(command, fault, runner.usual(command) if FULL else None)
    assert not outcome.problems, (outcome, outcome.errors)


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_the_plan_has_every_fault_with_many_commands(number: int) -> None:
    for commands, runs in ((QUICK, 2000), (COMMANDS, 2000)):
        pairs = {(command.name, fault.kind) for command, fault in (plan(at, 1, commands) for at in range(runs))}
        assert len([pair for pair in pairs if pair[1] == FAULTS[number]]) == len(commands)


def test_a_wrong_command_is_noticed(runner: Runner, tmp_path: Path) -> None:
    """The harness itself: a command that leaves a file, a process and a traceback, and ends with an unknown code."""
    from dataclasses import replace

    package = tmp_path / "faulty"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, subprocess, sys, tempfile\n"
        "tempfile.mkstemp()\n"
        "subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print('Traceback (most recent call last):', file=sys.stderr, flush=True)\n"
        "os._exit(77)\n"
    )
    command = replace(QUICK[0], module="faulty", environ=(("PYTHONPATH", str(tmp_path)),), words=())
    problems = "\n".join(runner.run(command, Fault("none"), None).problems)
    for part in ("left processes", "left in tmp", "a traceback", "exit code 77"):
        assert part in problems
