"""How long a rehearsal of 4 ranks takes, next to importing torch and the same script's first 3 steps on one process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
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
dist.destroy_process_group()
"""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
RUNS = 3


def seconds(argv: list[str], folder: str, environ: dict[str, str]) -> float:
    import os

    began = time.monotonic()
    subprocess.run(argv, cwd=folder, env={**os.environ, **environ}, check=True, capture_output=True, timeout=300)
    return time.monotonic() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
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
        ]
        plain = min(seconds([sys.executable, "train.py"], folder, ALONE) for _ in range(RUNS))
        whole = min(seconds(rehearse, folder, {}) for _ in range(RUNS))
    print(f"import torch and 3 steps, one process   {plain:5.2f} s")
    print(f"ddpdoctor rehearse, 4 ranks             {whole:5.2f} s   {whole / plain:.2f} x")


if __name__ == "__main__":
    main()
