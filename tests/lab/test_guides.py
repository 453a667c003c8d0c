"""The guides do what they say: the sbatch file runs on a real Slurm, shell pieces parse, the manifest has no mistake."""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.cli.app import run
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


def commands() -> list[list[str]]:
    """Every call of ddpdoctor in the guides, as words."""
    found = []
    for path in sorted(GUIDES.glob("*.md")):
        text = path.read_text().replace("\\\n", " ").replace("\n                  --", " --")
        for line in re.findall(r"ddpdoctor (?:check|collect|compare|hang|probe|run|triage)\b[^`'\n#&|]*", text):
            words = line.replace("$line", "").replace("$(hostname)", "node0").replace('"', "").split()
            found.append(words[: words.index("||")] if "||" in words else words)
    return found


def test_every_command_of_the_guides_takes_its_options() -> None:
    called = commands()
    assert len(called) > 12
    for _, name, *words in called:
        own = words[: words.index("--")] if "--" in words else words
        assert run([name, *(word for word in own if word != "…"), "--help"]) == 0, (name, own)
    assert run(["check", "--no-such-option", "--help"]) == 2  # the test would see it


@pytest.mark.slow
def test_every_launch_line_of_the_guides_is_without_mistake(tmp_path: Path) -> None:
    values = {
        "WORLD_SIZE": "2",
        "SLURM_NNODES": "2",
        "RANK": "1",
        "SLURM_NODEID": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
    }
    lines = [words[words.index("--") + 1 :] for words in commands() if "--" in words and words[-1] != "…"]
    lines = [line for line in lines if line]
    assert len(lines) > 4
    (tmp_path / "train.py").write_text(SCRIPT)
    for line in lines:
        words = [string.Template(word).safe_substitute(values) for word in line]
        done = subprocess.run(
            [sys.executable, "-m", "ddpdoctor", "lint", "--", *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("is_well", [True, False])
def test_the_health_check_drains_a_node_with_a_finding_and_no_other(is_well: bool, tmp_path: Path) -> None:
    script = next(text for text in blocks("slurm.md", "bash") if "state=drain" in text)
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/drained\n')
    (tmp_path / "scontrol").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path} | ({} if is_well else {"GLOO_SOCKET_IFNAME": "nosuch0"})
    done = subprocess.run(
        ["bash", "-c", script.replace("/var/log/", f"{tmp_path}/")],
        env=environ,
        timeout=60,
        capture_output=True,
        text=True,
    )
    drained = tmp_path / "drained"
    assert done.returncode == (0 if is_well else 1), done.stdout + done.stderr
    assert drained.exists() is not is_well
    assert is_well or "state=drain reason=ddpdoctor: see" in drained.read_text()


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
    assert done.stdout.count("all collectives returned correct values") == 1
    assert done.stdout.count("trained") == 2
    assert (tmp_path / "good.txt").read_text().split() == ["node0", "node1"]
    assert (tmp_path / "bad.txt").read_text() == ""
