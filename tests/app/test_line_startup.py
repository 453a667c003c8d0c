"""`check -- LINE` judges a line by the torch of the line's own interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import doctor

from ddpdoctor.app.line_startup import with_startup
from ddpdoctor.app.lint_lines import facts_of
from ddpdoctor.app.request import Request
from ddpdoctor.facts.record import Facts


def _facts(*words: str) -> Facts:
    request = Request(launch=words)
    return with_startup(facts_of(request, [], None), request)


@pytest.fixture
def old_torch(tmp_path: Path) -> Path:
    """A folder of packages with another torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '1.13.1'\n")
    (tmp_path / "train.py").write_text("import torch\n")
    return tmp_path


@pytest.mark.torch
def test_the_torch_of_the_interpreter_reads_the_line(old_torch: Path) -> None:
    own = _facts("torchrun", "--nproc-per-node=2", "train.py")
    facts = _facts(f"PYTHONPATH={old_torch}", "torchrun", "--nproc-per-node=2", f"{old_torch}/train.py")
    assert own.launch is not None
    assert facts.launch is not None
    assert own.launch.torch != facts.launch.torch
    assert (facts.launch.torch, facts.launch.torch_from) == ("1.13.1", "installed")
    assert facts.startup is not None
    assert facts.startup.has_torch


@pytest.mark.torch
def test_an_option_that_this_torch_does_not_know_is_an_error_of_check(old_torch: Path) -> None:
    line = (f"PYTHONPATH={old_torch}", "torchrun", "--nproc-per-node=2", "train.py")
    done = doctor("check", "--no-probe", "--select", "LAUNCH", "--format", "json", "--", *line, cwd=old_torch)
    assert "LAUNCH009" in {each["code"] for each in json.loads(done.stdout)["findings"]}


def test_the_torch_inside_a_container_is_assumed() -> None:
    facts = _facts("docker", "run", "image", "torchrun", "train.py")
    assert facts.launch is not None
    assert facts.launch.torch_from == "assumed"


def test_a_line_in_a_container_is_not_probed_outside_of_it(tmp_path: Path) -> None:
    line = ("docker", "run", "--ipc=host", "image", "torchrun", "--nproc_per_node=2", "train.py")
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    done = doctor("check", "--no-meet", "--format", "json", "--", *line, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    report = json.loads(done.stdout)
    assert not any(code.startswith("PROBE") for code in report["passed"])
    assert any("container" in each["reason"] for each in report["skipped"])
