"""The script for the day a GPU is there, on the CPU: it goes to its end, and claims nothing about a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
