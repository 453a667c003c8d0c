"""Corrected job files run under a real Slurm: two nodes, and a stand-in for training that prints its place in the world."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commandline import inside

from lab.slurm import slurm

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.slow]

TRAIN = """import torch.distributed as dist
dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
dist.barrier()
"""
HEAD = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
WRONG = {
    "the node rank is expanded too early, and the address is not exported": (
        f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nHEAD={HEAD}\n"
        "srun torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$SLURM_NODEID --master-addr=$HEAD --master-port=29511 train.py\n"
    ),
    "the master is each node itself": (
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nMASTER=localhost\n"
        "srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=7 --rdzv-endpoint=$MASTER:29512 train.py\n"
    ),
    "the ranks are set before srun starts them": (
        f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nexport MASTER_ADDR={HEAD}\nexport MASTER_PORT=29513\n"
        "export WORLD_SIZE=$SLURM_NTASKS\nexport RANK=$SLURM_PROCID\nsrun python train.py\n"
    ),
    "the options of the batch script come too late": (
        "cd .\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
        f"srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=7 --rdzv-endpoint={HEAD}:29514 train.py\n"
    ),
    "a space makes the number of nodes a comment": (
        "#SBATCH --ntasks-per-node=1\n# SBATCH --nodes=2\n"
        f"srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=7 --rdzv-endpoint={HEAD}:29515 train.py\n"
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_corrected_file_gives_the_intended_world(mistake: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    job = tmp_path / "job.sbatch"
    job.write_text(f"#!/bin/bash\n{WRONG[mistake]}")
    patch = inside("lint", "--diff", "job.sbatch", cwd=tmp_path)
    assert patch.returncode in (0, 1), patch.stderr  # a warning or an error
    assert patch.stdout, patch.stderr
    subprocess.run(["patch", "-p1"], input=patch.stdout, text=True, cwd=tmp_path, check=True)
    again = inside("lint", "job.sbatch", cwd=tmp_path)
    assert again.returncode == 0, again.stdout
    options, body = _apart(job.read_text())
    setup = f"cd {tmp_path}\nexport PATH={Path(sys.executable).parent}:$PATH OMP_NUM_THREADS=1\n"
    with slurm(nodes=2, own_hosts=True) as cluster:
        done = cluster.sbatch(f"{options}\n{setup}{body}", timeout=120)
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 of 2", "rank 1 of 2"], done.stdout + done.stderr


def _apart(text: str) -> tuple[str, str]:
    """The options that sbatch reads from a file, and its commands."""
    rows = text.split("\n")[1:]
    first = next(number for number, row in enumerate(rows) if not row.startswith("#"))
    return "\n".join(rows[:first]), "\n".join(rows[first:])
