"""What `ddpdoctor lint` costs beside `import torch`: one line at most a quarter of it; a thousand nodes under a second.

python benchmarks/lint.py [runs]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RUNS = 11
NODES = 1000
LIMIT = 0.25
SBATCH_LIMIT = 1.3


def main() -> int:
    """Measure in turns and print a table; 1 when a limit is not held."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("print()\n")
        Path(folder, "job.sbatch").write_text(_sbatch())
        line = ["--", "torchrun", "--nproc_per_node=2", "--master_port=29501", "train.py", "--lr", "1"]
        commands = {
            'python -c "import torch"': [sys.executable, "-c", "import torch"],
            "ddpdoctor lint -- torchrun …": [sys.executable, "-m", "ddpdoctor", "lint", *line],
            "ddpdoctor lint job.sbatch (300 lines)": [sys.executable, "-m", "ddpdoctor", "lint", "job.sbatch"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, command in commands.items():
                seconds[name].append(_timed(lambda command=command: _run(command, folder)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    torch, one, sbatch = medians.values()
    nodes = _thousand()
    for name, value in medians.items():
        print(f"{name:40} {value * 1000:8.0f} ms  {value / torch:5.2f}x of import torch")
    print(f"{NODES} lines held against each other        {nodes * 1000:8.0f} ms")
    held = one <= LIMIT * torch and sbatch <= SBATCH_LIMIT * one and nodes < 1.0
    print(
        "held"
        if held
        else f"NOT HELD: one line {one / torch:.2f}x, sbatch {sbatch / one:.2f}x of it, nodes {nodes:.2f} s"
    )
    return 0 if held else 1


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _sbatch() -> str:
    """300 lines of what such files hold: options, variables, conditions, loops, a heredoc, and a launch over several lines."""
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
    block = """# step {0}
export VARIABLE_{0}="value {0}"
WORDS_{0}=$(echo "$VARIABLE_{0}" | tr a-z A-Z)
if [ -z "$WORDS_{0}" ]; then
  echo "nothing in step {0}"
fi
for name in one two three; do
  mkdir -p "out/$name"
done
cat > out/{0}.txt <<EOF
name: $WORDS_{0}
EOF
"""
    body = "".join(block.format(i) for i in range(24))
    launch = "srun torchrun --nproc_per_node=8 \\\n  train.py \\\n  --lr 1 \\\n  --epochs 3\n"
    return head + body + "sleep 1\n" * (300 - 4 - 24 * 12 - 4) + launch


def _thousand() -> float:
    from ddpdoctor.cli.linting import environ_of, rules_of
    from ddpdoctor.cli.options import Common
    from ddpdoctor.collectors.launch import collect_launch
    from ddpdoctor.collectors.machine import Machine
    from ddpdoctor.doctor import judge
    from ddpdoctor.facts.record import SCHEMA, Facts

    line = (
        "torchrun --nnodes=1000 --nproc_per_node=8 --node_rank={} --master_addr=node0 --master_port=29500 -m pkg.train"
    )
    rules = rules_of(Common())

    def work() -> None:
        launch = collect_launch(Machine(), None, [line.format(i) for i in range(NODES)], torch="2.13", cwd="/job")
        judge(Facts(SCHEMA, "", "", environ=environ_of(launch), launch=launch), rules)

    return statistics.median(_timed(work) for _ in range(3))


if __name__ == "__main__":
    sys.exit(main())
