"""Inputs that `lint` judged wrongly once: false findings that must stay away, and mistakes that it did not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import inside

TRAIN = "import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
HEAD = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
BATCH = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"


def _codes(folder: Path, *words: str) -> list[tuple[str, str]]:
    report: dict[str, Any] = json.loads(inside("lint", "--format", "json", *words, cwd=folder).stdout)
    assert report["crashed"] == []
    return [(f["code"], f["severity"]) for f in report["findings"]]


def _errors(folder: Path, *words: str) -> list[str]:
    return [code for code, severity in _codes(folder, *words) if severity != "note"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize("blank", ["", " "])
def test_an_escaped_variable_of_a_task_is_expanded_in_the_task(folder: Path, blank: str) -> None:
    sign = " " if blank else "="
    (folder / "job.sbatch").write_text(
        f'{BATCH}H={HEAD}\nsrun bash -c "torchrun --nnodes=2 --nproc-per-node=4 --node-rank{sign}\\$SLURM_PROCID '
        '--master-addr=$H --master-port=29500 train.py"\n'
    )
    assert _errors(folder, "job.sbatch") == []


def test_save_after_the_script_of_deepspeed_belongs_to_the_script(folder: Path) -> None:
    assert _errors(folder, "--", "deepspeed", "--num_gpus=4", "train.py", "--save", "out", "--deepspeed") == []


def test_a_script_is_found_at_the_root_of_the_repository(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "scripts" / "slurm").mkdir(parents=True)
    line = "torchrun --standalone --nproc-per-node=4 train.py\n"
    (folder / "scripts" / "slurm" / "run.sh").write_text("#!/bin/bash\n" + line)
    assert _codes(folder, "scripts/slurm/run.sh") == []
    (folder / "scripts" / "slurm" / "away.sh").write_text("#!/bin/bash\ncd ../..\n" + line)
    assert _codes(folder, "scripts/slurm/away.sh") == []
    (folder / "scripts" / "slurm" / "chdir.sbatch").write_text("#!/bin/bash\n#SBATCH --chdir=/data/project\n" + line)
    assert _errors(folder, "scripts/slurm/chdir.sbatch") == []


def test_a_port_in_the_old_form_of_arithmetic_is_a_number(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "#!/bin/bash\nexport MASTER_PORT=$[20000 + 9500]\nexport MASTER_ADDR=localhost\n"
        "torchrun --nproc-per-node=4 --master-port=$MASTER_PORT train.py\n"
    )
    assert [code for code in _errors(folder, "run.sh") if code in ("ENV015", "ENV014")] == []


def test_axolotl_starts_a_launcher_with_its_own_options(folder: Path) -> None:
    words = ("axolotl", "train", "config.yml", "--launcher", "torchrun", "--", "--nproc_per_node=2", "--nnodes=1")
    assert _errors(folder, "--", *words) == []


def test_uninstalling_deepspeed_starts_nothing(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "#!/bin/bash\npip uninstall -y deepspeed\ntorchrun --standalone --nproc-per-node=4 train.py\n"
    )
    assert _codes(folder, "run.sh") == []


def test_a_script_that_ignores_unknown_options_needs_no_local_rank(folder: Path) -> None:
    (folder / "args.py").write_text(
        "import argparse, os, torch\np = argparse.ArgumentParser()\n"
        "p.add_argument('--local_rank', type=int, default=int(os.environ.get('LOCAL_RANK', 0)))\n"
        "args, rest = p.parse_known_args()\ntorch.cuda.set_device(args.local_rank)\n"
    )
    found = _errors(folder, "--", "python", "-m", "torch.distributed.launch", "--nproc_per_node=4", "args.py")
    assert "LAUNCH050" not in found


def test_world_size_of_an_operator_counts_processes(folder: Path) -> None:
    pod = (
        "{replicas: 1, template: {spec: {containers: [{name: pytorch, image: i, command: [torchrun, "
        "'--nnodes=$(WORLD_SIZE)', '--nproc_per_node=4', /app/train.py]}]}}}"
    )
    (folder / "job.yaml").write_text(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n  nprocPerNode: '4'\n"
        f"  pytorchReplicaSpecs:\n    Master: {pod}\n    Worker: {pod}\n"
    )
    assert {"LAUNCH085", "LAUNCH086", "LAUNCH510"} & set(_errors(folder, "job.yaml"))


def test_a_number_is_not_the_host_of_an_endpoint(folder: Path) -> None:
    words = ("torchrun", "--nnodes=2", "--nproc_per_node=4", "--rdzv_backend=c10d", "--rdzv_id=1")
    assert _errors(folder, "--", *words, "--rdzv_endpoint", "30000:29500", "train.py")


def test_two_nodes_with_different_backends_never_meet(folder: Path) -> None:
    static = "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=0 --master_addr=a --master_port=29500 train.py"
    c10d = "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=a:29500 --rdzv_id=1 train.py"
    assert "LAUNCH034" in _errors(folder, "--node", static, "--node", c10d)


def test_a_loop_over_hosts_with_one_rank_is_an_error(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "#!/bin/bash\nfor h in a b; do\n  ssh $h 'cd /data && torchrun --nnodes=2 --nproc_per_node=4 --node_rank=0 "
        "--master_addr=a --master_port=29500 train.py' &\ndone\nwait\n"
    )
    assert "LAUNCH036" in _errors(folder, "run.sh")
