"""How long a rehearsal of 4 ranks takes, next to importing torch and the same script's first 3 steps on one process; and how
much memory each of its ranks has, next to that process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,))).backward()
    optimizer.step()
with open("/proc/self/smaps_rollup") as rollup, open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as file:
    file.write(next(line.split()[1] for line in rollup if line.startswith("Pss:")))
dist.destroy_process_group()
"""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
RUNS = 3


def seconds(argv: list[str], folder: str, environ: dict[str, str]) -> float:
    import os

    began = time.monotonic()
    subprocess.run(argv, cwd=folder, env={**os.environ, **environ}, check=True, capture_output=True, timeout=300)
    return time.monotonic() - began


def megabytes(folder: str) -> list[float]:
    """The proportional set sizes that the ranks wrote, in MB."""
    return [int(each.read_text()) * 1024 / 1e6 for each in Path(folder).iterdir()]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sizes:
        (Path(folder) / "train.py").write_text(SCRIPT)
        rehearse = [
            sys.executable,
            "-m",
            "ddpdoctor",
            "rehearse",
            "--steps",
            "3",
            "--",
            "torchrun",
            "--nproc_per_node",
            "4",
            "train.py",
            sizes,
        ]
        plain = min(seconds([sys.executable, "train.py", sizes], folder, ALONE) for _ in range(RUNS))
        alone = megabytes(sizes)
        whole = min(seconds(rehearse, folder, {}) for _ in range(RUNS))
        rehearsed = megabytes(sizes)
    print(f"import torch and 3 steps, one process   {plain:5.2f} s")
    print(f"memory of the process (PSS)             {max(alone):5.0f} MB")
    print(f"memory of the largest of 4 ranks (PSS)  {max(rehearsed):5.0f} MB   {max(rehearsed) - max(alone):+.0f} MB")
    print(f"ddpdoctor rehearse, 4 ranks             {whole:5.2f} s   {whole / plain:.2f} x")


if __name__ == "__main__":
    main()
