"""LAUNCH071 where PATH has no torchrun at all: only a line that looks for it here is wrong."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from ddpdoctor.engine import judge
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Severity
from ddpdoctor.launch.line import line_of_argv
from ddpdoctor.rules import load

RULE = next(each for each in load(("launch",)) if each.code == "LAUNCH071")
NOTHING = Versions(python="3.11.7", python_path="/usr/bin/python3")


def _worst(line: str, versions: Versions) -> list[Severity]:
    read = line_of_argv(shlex.split(line), {}, (2, 6), "/job")
    facts = Facts(SCHEMA, collected_at="", hostname="", launch=Launch(lines=(read,)), versions=versions)
    return [each.worst for each in judge(facts, [RULE]).findings]


@pytest.mark.parametrize("line", ["torchrun --nnodes=2 train.py", "OMP_NUM_THREADS=4 torchrun train.py"])
def test_a_torchrun_that_no_folder_has_is_named(line: str) -> None:
    assert _worst(line, NOTHING) == [Severity.ERROR]
    assert _worst(line, replace(NOTHING, torch="2.6.0")) == [Severity.WARNING]


@pytest.mark.parametrize(
    "line",
    [
        "python -m torch.distributed.run train.py",
        "/opt/venv/bin/torchrun train.py",
        "PATH=/opt/venv/bin:/bin torchrun train.py",
        "srun torchrun train.py",
        "apptainer exec torch.sif torchrun train.py",
        "conda run -n torch torchrun train.py",
        "accelerate launch train.py",
    ],
)
def test_one_that_is_looked_for_elsewhere_is_not(line: str) -> None:
    assert _worst(line, NOTHING) == []
