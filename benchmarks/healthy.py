"""Healthy jobs of 2 and 3 simulated hosts, launched in every way: no finding above a note, no hang. Needs root.

python benchmarks/healthy.py [--runs 50] [--no-probe]

`check -- LAUNCH` on every host, as its users would type it: static, c10d, elastic, env://, accelerate; late nodes; an address in
place of a name; several ranks per node. Prints each run that says anything, and the slowest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from lab.hosts import hosts
from lab.processes import Process

SCRIPT = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"
CAP_SECONDS = 120.0


def static(node: int, count: int) -> list[str]:
    master = ["--master-addr=node0", "--master-port=29500"]
    return ["torchrun", f"--nnodes={count}", f"--node-rank={node}", "--nproc-per-node=1", *master]


def pairs(node: int, count: int) -> list[str]:
    return [*static(node, count), "--nproc-per-node=2"]


def unlike(node: int, count: int) -> list[str]:
    return [*static(node, count), f"--nproc-per-node={1 + node}"]


def by_address(node: int, count: int) -> list[str]:
    return [*static(node, count), "--master-addr=10.77.0.1" if node else "--master-addr=node0"]


def c10d(node: int, count: int) -> list[str]:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=healthy"]
    return ["torchrun", f"--nnodes={count}", "--nproc-per-node=1", *rendezvous]


def elastic(node: int, count: int) -> list[str]:
    return [*c10d(node, count), f"--nnodes=1:{count}"]


def accelerate(node: int, count: int) -> list[str]:
    machines = ["--num_machines", str(count), "--num_processes", str(count), "--machine_rank", str(node)]
    master = ["--main_process_ip", "node0", "--main_process_port", "29500"]
    return ["accelerate", "launch", "--multi_gpu", *machines, *master]


def ranks(node: int, count: int) -> list[str]:
    return ["env", "MASTER_ADDR=node0", "MASTER_PORT=29500", f"RANK={node}", f"WORLD_SIZE={count}", "python"]


LAUNCHES: tuple[Callable[[int, int], list[str]], ...] = (
    *(static, c10d, pairs, ranks, elastic, by_address, unlike, accelerate),
)


def run(number: int, words: list[str]) -> tuple[str, float, list[str]]:
    """What was launched, seconds, and what the reports say above a note."""
    launch = LAUNCHES[number % len(LAUNCHES)]
    count = 2 + (number // len(LAUNCHES)) % 2
    late = number % (count + 1)
    with tempfile.TemporaryDirectory() as folder, hosts(count) as lab:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        started = time.monotonic()
        nodes: list[Process] = []
        for node in sorted(range(count), key=lambda each: (each == late, each)):
            if node == late:
                time.sleep(1.5)
            output = ["--format", "json", "--output", f"{folder}/{node}.json", *words]
            line = [sys.executable, "-m", "ddpdoctor", "check", *output, "--", *launch(node, count), str(script)]
            if launch is ranks:
                *given, program = launch(node, count)
                line = [*given, *line[: line.index("--") + 1], program, str(script)]
            nodes.append(lab.host(node).start(line, cwd=folder))
        said = []
        for each in nodes:
            try:
                each.wait(max(CAP_SECONDS - (time.monotonic() - started), 1.0))
            except subprocess.TimeoutExpired:
                said.append("hangs")
        seconds = time.monotonic() - started
        for node in range(count):
            path = Path(folder) / f"{node}.json"
            report = json.loads(path.read_text()) if path.exists() else {"findings": [], "verdict": "no report"}
            above = [f"{f['code']} {f['message']}" for f in report["findings"] if f["severity"] != "note"]
            said += [f"node{node}: {words}" for words in above]
            if report["verdict"] not in ("pass", "warn", "fail"):
                said.append(f"node{node}: {report['verdict']}")
    return (
        f"{launch.__name__} {count} hosts, node {late} late" if late < count else f"{launch.__name__} {count} hosts",
        seconds,
        said,
    )


def main() -> int:
    """Print what should not be there; 1 when there is anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--no-probe", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root: it makes network namespaces")
        return 2
    bad, longest = 0, (0.0, "")
    for number in range(options.runs):
        name, seconds, said = run(number, ["--no-probe"] if options.no_probe else [])
        longest = max(longest, (seconds, name))
        if said:
            bad += 1
            print(f"{number} {name}: " + "; ".join(said), flush=True)
    print(
        f"{options.runs} healthy runs, {bad} with anything above a note; the longest {longest[0]:.1f} s ({longest[1]})"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
