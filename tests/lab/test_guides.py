"""The guides do what they say: the sbatch file runs on a real Slurm, shell pieces parse, the manifest has no mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.slurm import slurm

GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"
SCRIPT = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"


def blocks(guide: str, kind: str) -> list[str]:
    """The code blocks of one kind in a guide."""
    return re.findall(rf"```{kind}\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)


@pytest.mark.parametrize("guide", sorted(path.name for path in GUIDES.glob("*.md")))
def test_every_piece_of_shell_parses(guide: str) -> None:
    for text in blocks(guide, "bash"):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, (text, done.stderr)


def test_the_manifest_of_the_guide_has_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks("kubernetes.md", "yaml")[0])
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "lint", str(tmp_path / "job.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.slow
def test_the_preflight_of_the_sbatch_guide_runs_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + "print('trained', flush=True)\n")
    body = blocks("slurm.md", "bash")[0].partition("\n")[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with slurm(nodes=2, own_hosts=True) as cluster:
        done = cluster.sbatch(f"cd {tmp_path}\n{body}", "-N2", "--ntasks-per-node=1", timeout=120, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("every collective gave the right values") == 1
    assert done.stdout.count("trained") == 2
    assert (tmp_path / "good.txt").read_text().split() == ["node0", "node1"]
    assert (tmp_path / "bad.txt").read_text() == ""
