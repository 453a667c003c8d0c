"""Values of the command line: what needs no conversion starts without pydantic."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = """
import sys
from ddpdoctor.cli.app import run

run(sys.argv[1:])
print("pydantic" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "--format", "json", "--fail-on", "warning", "--verbose", "--", "torchrun", "train.py"),
        ("lint", "--node", "torchrun train.py", "--node", "torchrun train.py"),
        ("explain", "LAUNCH001"),
        ("versions",),
    ],
    ids=" ".join,
)
def test_a_command_that_converts_nothing_does_not_import_pydantic(words: tuple[str, ...]) -> None:
    """Its import takes longer than everything else that a short command does."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK, *words], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr.splitlines()[-1] == "False"


def test_a_value_that_is_no_choice_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "lint", "--format", "jsonn", "--", "torchrun", "train.py"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "'jsonn'" in done.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_a_command_is_shown(option: str) -> None:
    """Its option has a callback, which runs only if the value is passed on."""
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "lint", option], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ddpdoctor lint")
