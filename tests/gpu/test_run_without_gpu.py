"""The script for the day a GPU is there, on the CPU: it goes to its end, and claims nothing about a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from commandline import environment

SCRIPT = Path(__file__).parent / "run.py"


def _run(folder: Path, *words: str) -> tuple[int, dict[str, dict[str, str]], str]:
    """The exit code, the steps by name, and the summary."""
    command = [sys.executable, str(SCRIPT), str(folder), *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert (folder / "results.json").exists(), done.stderr
    steps = {step["name"]: step for step in json.loads((folder / "results.json").read_text())["steps"]}
    return done.returncode, steps, (folder / "summary.md").read_text()


@pytest.mark.torch
def test_what_needs_the_gpu_was_not_run_and_says_so(tmp_path: Path) -> None:
    code, steps, summary = _run(tmp_path / "out", "--jobs", "none")
    assert code == 0, steps
    for name in ("nvidia-smi", "topo cell by cell", "tests/gpu", "NVML queries"):
        assert steps[name]["state"] == "not run", steps[name]
    assert steps["ddpdoctor collect"]["state"] == steps["fixtures"]["state"] == "ok"
    assert "without a GPU" in summary
    assert (tmp_path / "out" / "results.tar.gz").stat().st_size > 1000


@pytest.mark.torch
def test_real_jobs_are_disturbed_and_their_causes_named(tmp_path: Path) -> None:
    names = "exception,killed-rank"
    code, steps, _ = _run(tmp_path / "out", "--jobs", "only", "--timeout", "8", "--only", names)
    assert code == 0, steps
    assert "PROBE006 error cause rank 1" in steps["job exception-2"]["detail"]
    assert "exit [1, -9]" in steps["job killed-rank-2"]["detail"]
    assert "job wrong-ordinal" not in steps or steps["job wrong-ordinal"]["state"] == "not run"
    assert steps["scrubbed logs"]["detail"] == "4 logs"


def test_a_step_without_time_is_not_run(tmp_path: Path) -> None:
    code, steps, _ = _run(tmp_path / "out", "--seconds", "0", "--jobs", "none")
    assert code == 0
    assert {step["state"] for step in steps.values()} == {"not run"}


def test_the_status_page_gets_the_summary_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "status.md"
    page.write_text("# before\n<!-- tests/gpu/run.py: begin -->\nold\n<!-- tests/gpu/run.py: end -->\nafter\n")
    _run(tmp_path / "out", "--seconds", "0", "--jobs", "none", "--status", str(page))
    text = page.read_text()
    assert text.startswith("# before\n")
    assert text.endswith("<!-- tests/gpu/run.py: end -->\nafter\n")
    assert "old" not in text
    assert "| NVML queries | not run |" in text


def _module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("run_on_gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_on_gpu", module)
    spec.loader.exec_module(module)
    return module


def _program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_an_nvidia_smi_that_hangs_or_is_missing_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _module(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert script.smi_output(["-q"], 5.0) == (127, "")
    _program(tmp_path / "bin", "nvidia-smi", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    started = time.monotonic()
    assert script.smi_output(["-q"], 0.3) == (124, "")
    assert time.monotonic() - started < 60


def test_an_nvml_that_hangs_is_ended_and_its_call_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _module(monkeypatch)
    python = _program(tmp_path / "bin", "python", """echo '["?", "nvmlDeviceGetCount_v2"]'; exec sleep 600""")
    monkeypatch.setattr(script.sys, "executable", str(python))
    monkeypatch.setattr(script, "NVML_SECONDS", 1.0)
    run = script.Run(tmp_path, time.monotonic() + 300, has_gpu=True)
    state, said = script._nvml(run)
    assert state == "failed"
    assert "no answer to nvmlDeviceGetCount_v2" in said
