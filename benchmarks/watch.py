"""What `run --watch` costs per step: the hook's records in a process group of one rank, and a job of 2 ranks with and without it.

The first number does not depend on the load of the machine: the CPU time that one step's records take.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
dist.init_process_group("gloo")
width = int(sys.argv[1])
model = DDP(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, width), torch.randint(10, (64,))
cpu, wall = [], []
for step in range(60):
    begun, clock = time.thread_time(), time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    cpu.append(time.thread_time() - begun)
    wall.append(time.perf_counter() - clock)
cpu, wall = sorted(cpu[10:]), sorted(wall[10:])
if dist.get_rank() == 0:
    print(f"cpu {cpu[len(cpu) // 2] * 1e3:.3f} wall {wall[len(wall) // 2] * 1e3:.3f}")
dist.destroy_process_group()
"""
RUNS = 3
WIDTHS = (256, 1024)


def median(argv: list[str], folder: str) -> tuple[float, float]:
    """The median CPU and wall time of a step in ms: the best of some runs."""
    cpu, wall = [], []
    for _ in range(RUNS):
        out = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, timeout=300).stdout
        found = re.search(r"cpu ([\d.]+) wall ([\d.]+)", out)
        assert found is not None, out
        cpu.append(float(found[1]))
        wall.append(float(found[2]))
    return min(cpu), statistics.median(wall)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        for width in WIDTHS:
            job = ["torchrun", "--nproc_per_node", "2", "train.py", str(width)]
            watched = [sys.executable, "-m", "ddpdoctor", "run", "--no-check", "--watch", "--watch-steps", "100", "--"]
            plain, plain_wall = median(job, folder)
            with_it, with_wall = median([*watched, *job], folder)
            ended, _ = median([*watched[:-3], "--watch-steps", "5", "--", *job], folder)
            print(f"width {width}: one step of the main thread, CPU time")
            print(f"  without        {plain:8.3f} ms   ({plain_wall:.1f} ms on the clock)")
            print(
                f"  with --watch   {with_it:8.3f} ms   {(with_it / plain - 1) * 100:+.1f} %   ({with_wall:.1f} ms on the clock)"
            )
            print(f"  after its end  {ended:8.3f} ms   {(ended / plain - 1) * 100:+.1f} %")


if __name__ == "__main__":
    main()
