"""What `ddpdoctor lint` costs beside `import torch`: one line at most a quarter of it, one script 0.3x; a thousand nodes
under a second; a repository 20,000 lines a second on two cores; a thousand files in 15 s.

python benchmarks/lint.py [runs]
python benchmarks/lint.py folder…     only these repositories: lines a second, and seconds for a thousand judged files
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ddpdoctor.scripts.syntax.parsing import concerns

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "situations" / "scripts"
RUNS = 11
NODES = 1000
LIMIT = 0.25
SBATCH_LIMIT = 1.3
SCRIPT_LIMIT = 0.3
LINES_A_SECOND = 20_000
FILES = 1000
FILES_SECONDS = 15.0


def main() -> int:
    """Measure alternately and print a table; 1 if a limit is exceeded."""
    if any(not each.isdecimal() for each in sys.argv[1:]):
        return _repositories([Path(each) for each in sys.argv[1:]])
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("print()\n")
        Path(folder, "job.sbatch").write_text(_sbatch())
        shutil.copy(SCRIPTS / "right" / "train_ddp.py", Path(folder, "ddp.py"))
        line = ["--", "torchrun", "--nproc_per_node=2", "--master_port=29501", "train.py", "--lr", "1"]
        commands = {
            'python -c "import torch"': [sys.executable, "-c", "import torch"],
            "ddpdoctor lint -- torchrun …": [sys.executable, "-m", "ddpdoctor", "lint", *line],
            "ddpdoctor lint job.sbatch (300 lines)": [sys.executable, "-m", "ddpdoctor", "lint", "job.sbatch"],
            "ddpdoctor lint ddp.py (60 lines)": [sys.executable, "-m", "ddpdoctor", "lint", "ddp.py"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, command in commands.items():
                seconds[name].append(_timed(lambda command=command: _run(command, folder)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    torch, one, sbatch, script = medians.values()
    nodes = _thousand()
    torch_lines, torch_seconds = _repository(Path(find_spec("torch").origin or "").parent)  # type: ignore[union-attr]
    file_seconds = _thousand_files()
    rate = torch_lines / torch_seconds
    for name, value in medians.items():
        print(f"{name:40} {value * 1000:8.0f} ms  {value / torch:5.2f}x of import torch")
    print(f"{NODES} lines compared with each other        {nodes * 1000:8.0f} ms")
    print(f"torch itself, {torch_lines} lines              {torch_seconds * 1000:8.0f} ms  {rate:.0f} lines/s")
    print(f"{FILES} training scripts                    {file_seconds * 1000:8.0f} ms")
    limits = {
        f"one line {one / torch:.2f}x": one <= LIMIT * torch,
        f"sbatch {sbatch / one:.2f}x of it": sbatch <= SBATCH_LIMIT * one,
        f"one script {script / torch:.2f}x": script <= SCRIPT_LIMIT * torch,
        f"nodes {nodes:.2f} s": nodes < 1.0,
        f"{rate:.0f} lines/s": rate >= LINES_A_SECOND,
        f"{FILES} files {file_seconds:.1f} s": file_seconds <= FILES_SECONDS,
    }
    broken = [name for name, is_held in limits.items() if not is_held]
    print(f"NOT HELD: {', '.join(broken)}" if broken else "held")
    return 1 if broken else 0


def _repositories(folders: list[Path]) -> int:
    """Wall and CPU seconds of other repositories; 1 if one is too slow."""
    slow = 0
    for folder in folders:
        before = os.times()
        lines, seconds = _repository(folder)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        judged = sum(concerns(path.read_text(errors="replace")) for path in folder.rglob("*.py"))
        rate, thousand = lines / seconds, seconds * FILES / max(1, judged)
        print(
            f"{folder}: {lines} lines, {rate:.0f} lines/s, {judged} files judged, {thousand:.1f} s a thousand, CPU {cpu:.1f} s"
        )
        slow += rate < LINES_A_SECOND
    return int(bool(slow))


def _repository(folder: Path) -> tuple[int, float]:
    """The lines of Python under a folder, and the seconds that linting it takes."""
    lines = sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))
    command = [sys.executable, "-m", "ddpdoctor", "lint", "--timeout", "600", str(folder)]
    return lines, _timed(lambda: _run(command, "/", 600))


def _thousand_files() -> float:
    """Seconds for a folder of a thousand training scripts that must all be judged."""
    texts = [path.read_text() for path in sorted(SCRIPTS.glob("*/*.py")) if path.parent.name in ("right", "wrong")]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, f"train{number}.py").write_text(f"# {number}\n{texts[number % len(texts)]}")
        return _timed(lambda: _run([sys.executable, "-m", "ddpdoctor", "lint", "--timeout", "600", "."], folder, 600))


def _run(command: list[str], folder: str, seconds: float = 120.0) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _sbatch() -> str:
    """300 lines of typical content: options, variables, conditions, loops, a heredoc, and a launch over several lines."""
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
    from ddpdoctor.app.lint_lines import environ_of, rules_of
    from ddpdoctor.app.request import Request
    from ddpdoctor.collectors.launch import collect_launch
    from ddpdoctor.engine import judge
    from ddpdoctor.facts.record import SCHEMA, Facts
    from ddpdoctor.system.machine import Machine

    line = (
        "torchrun --nnodes=1000 --nproc_per_node=8 --node_rank={} --master_addr=node0 --master_port=29500 -m pkg.train"
    )
    rules = rules_of(Request())

    def work() -> None:
        launch = collect_launch(Machine(), None, [line.format(i) for i in range(NODES)], torch="2.13", cwd="/job")
        judge(Facts(SCHEMA, "", "", environ=environ_of(launch), launch=launch), rules)

    return statistics.median(_timed(work) for _ in range(3))


if __name__ == "__main__":
    sys.exit(main())
