"""`srun ddpdoctor check`: every task joins as a rank; one node tells in full, the others in a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lab.slurm import slurm

pytestmark = [pytest.mark.root, pytest.mark.torch]

CHECK = (sys.executable, "-m", "ddpdoctor", "check")


@pytest.mark.slow
def test_a_healthy_step_passes_without_a_master_being_set(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with slurm(nodes=2) as cluster:
        done = cluster.srun(
            *("-N2", "--ntasks-per-node=2", *CHECK, "--output", str(report), "--format", "json"), timeout=120
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all collectives returned correct values") == 1
    told = json.loads(report.read_text())
    assert told["verdict"] in ("pass", "warn"), told["findings"]


def test_a_task_that_never_comes_is_named_with_its_node() -> None:
    words = 'if [ "$SLURM_PROCID" = 3 ]; then exit 0; fi; exec "$@"'
    with slurm(nodes=2) as cluster:
        done = cluster.srun(
            *("-N2", "--ntasks-per-node=2", "sh", "-c", words, "sh", *CHECK, "--join-timeout", "4"), timeout=120
        )
    assert done.returncode == 1
    assert "rank 3 (node 1, n1) did not join within 4 s" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_collect_writes_a_file_for_each_node_with_all_its_ranks(tmp_path: Path) -> None:
    words = f'cd "{tmp_path}"; exec {sys.executable} -m ddpdoctor collect -o facts.json'
    with slurm(nodes=2, own_hosts=True) as cluster:
        done = cluster.srun("-N2", "--ntasks-per-node=2", "sh", "-c", words, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert {name: each["hostname"] for name, each in saved.items()} == {
        "facts.json": "node0",
        "facts.node1.json": "node1",
    }
    ranks = {name: [each["rank"] for each in facts["hang"]["processes"]] for name, facts in saved.items()}
    assert {name: sorted(each) for name, each in ranks.items()} == {"facts.json": [0, 1], "facts.node1.json": [2, 3]}
