"""The probe that `check` starts before it reads its command line: only when nothing is in doubt, and never left behind."""

from __future__ import annotations

import pytest

from ddpdoctor.app import early_probe
from ddpdoctor.probe import worker_start
from tests.commandline import doctor
from tests.probe.ranks import left_over


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were started; torch is taken to be installed, and no GPU to be here."""
    modules: list[str] = []
    monkeypatch.setattr(worker_start, "run_probe", lambda module, words: modules.append(module))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(early_probe, "GPU_NODES", ())
    monkeypatch.setattr(early_probe, "_started", [])
    return modules


@pytest.mark.parametrize(
    "words",
    ["check", "check --format json", "check --format=json -q --output report", "check --select ENV,NET --quiet"],
)
def test_a_plain_check_is_begun_at_once(started: list[str], words: str) -> None:
    early_probe.start(words.split(), {"PATH": "/bin"})
    assert started == ["ddpdoctor.probe.local"]


@pytest.mark.parametrize(
    "words",
    [
        "check -- torchrun train.py",
        "check --no-probe",
        "check --help",
        "check --facts file",
        "check --timeout 5",
        "check --timeout=5",
        "check --format --no-probe",
        "check checkpoint",
        "lint",
    ],
)
def test_anything_in_doubt_is_read_first(started: list[str], words: str) -> None:
    early_probe.start(words.split(), {})
    assert not started


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "PMI_RANK"])
def test_a_rank_of_a_job_is_not_probed_alone(started: list[str], name: str) -> None:
    early_probe.start(["check"], {name: "0"})
    assert not started


@pytest.mark.torch
def test_nothing_is_left_of_it_when_the_command_line_is_wrong() -> None:
    done = doctor("check", "--format", "yam1", env={"DDPDOCTOR_TEST": "early-and-wrong"})
    assert done.returncode == 2
    assert "yam1" in done.stderr
    assert left_over("early-and-wrong") == []
