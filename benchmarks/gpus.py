"""How long `ddpdoctor gpus` takes beside gpustat on a fake NVML with 8 GPUs, and the judging of 1,000 nodes.

python benchmarks/gpus.py [--runs 7]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fakes import library  # noqa: E402
from machines import machine  # noqa: E402

from ddpdoctor.engine import judge  # noqa: E402
from ddpdoctor.rules import load  # noqa: E402

PROFILE = "h100x8_sxm_healthy"
RATIO = 1.5
NODES, NODES_SECONDS = 1000, 2.0


def seconds_of(argv: list[str], environ: dict[str, str], runs: int) -> float:
    """The median wall time of a command that must succeed."""
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        subprocess.run(argv, env=environ, check=True, stdout=subprocess.DEVNULL, timeout=60)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def judging_seconds() -> float:
    """The processor time to judge the facts of many nodes by the rules for GPUs and their connections."""
    facts, rules = machine(PROFILE), load(("gpu", "topo"))
    begin = time.process_time()
    for _ in range(NODES):
        outcome = judge(facts, rules)
        assert not outcome.crashed, outcome.crashed
    return time.process_time() - begin


def main() -> int:
    """Print both measurements; 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    judging = judging_seconds()
    print(f"{NODES} nodes judged: {judging:.2f} s (limit {NODES_SECONDS:g} s)")
    gpustat = shutil.which("gpustat")
    if gpustat is None:
        print("gpustat is not installed: pip install gpustat")
        return int(judging > NODES_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        library.build(library.profile(PROFILE), Path(folder))
        environ = {**os.environ, "LD_LIBRARY_PATH": folder}
        ours = seconds_of([sys.executable, "-m", "ddpdoctor", "gpus"], environ, runs)
        theirs = seconds_of([gpustat], environ, runs)
    ratio = ours / theirs
    print(f"ddpdoctor gpus {ours:.3f} s, gpustat {theirs:.3f} s: {ratio:.2f} times (limit {RATIO:g})")
    return int(ratio > RATIO or judging > NODES_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
