"""How long ddpdoctor takes beside what a user would run instead: medians side by side, with limits.

python benchmarks/startup.py [--runs 7] [--only NAME,…]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TYPER_APP = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None: ...\napp()\n"
ALL_REDUCE = """\
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(1024) * (rank + 1)
dist.all_reduce(tensor)
expected = world_size * (world_size + 1) / 2
assert torch.all(tensor == expected), (rank, tensor[0])
dist.barrier()
if rank == 0:
    print(f"all_reduce over {world_size} ranks: {tensor[0].item():g}, pid {os.getpid()}")
dist.destroy_process_group()
"""
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def pairs(folder: Path) -> dict[str, tuple[list[str], list[str], float]]:
    """Name: our command, theirs, and the largest ratio that is allowed."""
    app, script = folder / "app.py", folder / "script.py"
    app.write_text(TYPER_APP)
    script.write_text(ALL_REDUCE)
    doctor = [PYTHON, "-c", "from ddpdoctor.cli import main; main()"]
    bare = [*TORCHRUN, str(script)]
    return {
        "version": ([*doctor, "--version"], [PYTHON, str(app)], 1.3),
        "static": ([*doctor, "check", "--no-probe"], [PYTHON, "-m", "torch.utils.collect_env"], 0.35),
        "check": ([*doctor, "check"], bare, 0.6),
        "local": ([PYTHON, "-m", "ddpdoctor.probe.local"], bare, 0.6),
        "probe": ([*TORCHRUN, "-m", "ddpdoctor.probe"], bare, 1.25),
    }


def seconds(command: list[str]) -> float:
    """Wall time of one run; findings (exit code 1) do not fail the benchmark."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, env=environ, timeout=300)
    took = time.perf_counter() - started
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return took


def supervisor_megabytes() -> float:
    """The largest resident size of a supervisor during a probe of two ranks."""
    running = subprocess.Popen(
        [*TORCHRUN, "-m", "ddpdoctor.probe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    largest = 0
    while running.poll() is None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"ddpdoctor.probe" not in words or b"torch.distributed.run" in words:
                    continue  # the second is torchrun's own fork, before it becomes the supervisor
                if f"PPid:\t{running.pid}\n" in (folder / "status").read_text():
                    pages = int((folder / "statm").read_text().split()[1])
                    largest = max(largest, pages * os.sysconf("SC_PAGE_SIZE"))
            except OSError:
                continue  # it exited meanwhile
        time.sleep(0.05)
    return largest / 1e6


def main() -> int:
    """Print the table; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    broken = 0
    print(f"{'name':8} {'ours':>8} {'theirs':>8} {'ratio':>6} {'limit':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (ours, theirs, limit) in pairs(Path(folder)).items():
            if options.only and name not in options.only.split(","):
                continue
            times = [(seconds(ours), seconds(theirs)) for _ in range(options.runs)]
            mine, other = (statistics.median(column) for column in zip(*times, strict=True))
            broken += mine / other > limit
            print(f"{name:8} {mine:7.2f}s {other:7.2f}s {mine / other:6.2f} {limit:6.2f}", flush=True)
    if not options.only:
        size = supervisor_megabytes()
        broken += size > 20
        print(f"supervisor of a rank: {size:.1f} MB, limit 20")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
