"""What `ddpdoctor run` costs a job: the same job alone and under `run --no-check`, and the time from its failure to the triage.

python benchmarks/run.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

OWN = [sys.executable, "-m", "ddpdoctor", "run", "--no-check", "--"]
LINES = 4_000
JOB = f"""
import time
begin = time.process_time(), time.perf_counter()
total = 0
for step in range({LINES}):
    total += sum(i * i for i in range(3000))
    print(f"step {{step}}: loss {{total % 97}} " + "x" * 60, flush=True)
end = time.process_time(), time.perf_counter()
import sys
print(end[0] - begin[0], end[1] - begin[1], file=sys.stderr)
"""
FAILING = "import sys\nfor i in range(200000): print(f'step {i}: loss 0.1')\nraise ValueError('bad batch')\n"
SHARE = 0.05
"""Noise of a shared machine; the goal is no measurable cost."""
TRIAGE_SECONDS = 2.0


def _cpu(words: list[str]) -> tuple[float, float]:
    """CPU and wall seconds that the job itself measures, while its output is read."""
    done = subprocess.run([*words, sys.executable, "-c", JOB], capture_output=True, text=True, check=True)
    cpu, wall = done.stderr.strip().splitlines()[-1].split()
    return float(cpu), float(wall)


def _triage_seconds() -> float:
    """From the end of a job that fails to the end of `run`."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {"TMPDIR": folder, "PATH": "/usr/bin:/bin"}
        job = [
            sys.executable,
            "-c",
            f"import time\ntry:\n    exec({FAILING!r})\nfinally:\n    print(time.time(), flush=True)",
        ]
        done = subprocess.run([*OWN, *job], capture_output=True, text=True, env=environ, check=False)
        return time.time() - float(done.stdout.strip().splitlines()[-1])


def main() -> int:
    """Print the table; 1 if a limit is exceeded."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    alone, under = [], []
    for _ in range(rounds):
        alone.append(_cpu([]))
        under.append(_cpu(OWN))
    print(f"a job that prints {LINES} lines, {rounds} rounds, the job's own seconds (median)")
    cpu = [statistics.median(each[0] for each in times) for times in (alone, under)]
    wall = [statistics.median(each[1] for each in times) for times in (alone, under)]
    print(f"{'alone':<16} cpu {cpu[0]:.3f}  wall {wall[0]:.3f}")
    print(f"{'ddpdoctor run':<16} cpu {cpu[1]:.3f}  wall {wall[1]:.3f}   {cpu[1] / cpu[0] - 1:+.1%} cpu")
    late = min(_triage_seconds() for _ in range(3))
    print(f"from the failure to the end of the triage: {late:.2f} s (limit {TRIAGE_SECONDS:g} s)")
    return 0 if cpu[1] / cpu[0] - 1 <= SHARE and late <= TRIAGE_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
