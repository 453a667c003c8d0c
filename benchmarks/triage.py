"""How fast `ddpdoctor triage` reads logs, beside `grep -aEc` with the same patterns as one alternation.

    python benchmarks/triage.py [--bytes 1073741824] [--files 512] [--folder DIR]

Makes a log of a realistic mixture (steps of eight ranks, progress bars, NCCL's INFO lines, warnings, and a failure at 40 % of
it), then prints seconds, MB/s and the peak memory of every way. Needs GNU grep; the fast engine is `pip install
ddpdoctor[fast]`. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.rules import load

RANKS = 8
RUNS = 3
BLOCK_LINES = 60_000
PROSE = "the of model to and in time was error it for not found that as be which file has this from are data"
WORDS = tuple(PROSE.split())
FAILURE_AT = 0.4


def lines(dice: random.Random) -> Iterator[str]:
    """One block of a log as eight ranks of a training job write it."""
    for step in range(BLOCK_LINES):
        rank = dice.randrange(RANKS)
        kind = dice.random()
        if kind < 0.62:
            yield (
                f"[rank{rank}]: 2025-04-12 09:{step % 60:02}:{step % 59:02},113 INFO train.py:211 epoch 3 step {step} "
                f"loss {dice.random() * 4:.5f} grad_norm {dice.random():.4f} lr 3.0e-04 tokens/s {dice.randrange(9000, 20000)}"
            )
        elif kind < 0.80:
            done = step % 1000
            bar = f"{'█' * (done // 50):<20}"
            yield f"Epoch 3:  {done // 10}%|{bar}| {done}/1000 [06:28<04:39, {dice.random() * 3:.2f}it/s, loss=2.6]\r"
        elif kind < 0.92:
            yield (
                f"gpu-a0{rank}:{41000 + rank}:{42000 + rank} [{rank}] NCCL INFO Channel {step % 24:02}/0 : {rank}[{rank}] -> "
                f"{(rank + 1) % 8}[{(rank + 1) % 8}] via P2P/CUMEM/read"
            )
        elif kind < 0.95:
            yield f"[rank{rank}]: validation error {dice.random():.4f}, failed samples 0, timeout budget 600 s, warnings 0"
        elif kind < 0.975:
            yield f"[rank{rank}]:   warnings.warn('torch.utils.checkpoint: use_reentrant should be passed explicitly.')"
        elif kind < 0.998:
            words = " ".join(dice.choice(WORDS) for _ in range(24))
            yield f"[rank{rank}]: sample: {words}"
        else:
            yield (
                f"[rank{rank}]:[W412 09:50:04.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: process group has NOT been "
                "destroyed before we destruct ProcessGroupNCCL."
            )


FAILURE = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/ana/proj/train.py", line 211, in <module>
[rank3]:     main()
[rank3]:   File "/home/ana/proj/model/block.py", line 64, in step
[rank3]:     out = model(batch["ids"])
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.15 GiB
"""


@functools.cache
def made_blocks() -> list[bytes]:
    dice = random.Random(7)
    return ["\n".join(lines(dice)).encode() + b"\n" for _ in range(4)]


def make_log(path: Path, size_bytes: int, seed: int = 7) -> None:
    """A log of about `size_bytes` with one failure in it."""
    dice = random.Random(seed)
    blocks = made_blocks()
    written, failed = 0, False
    with path.open("wb") as file:
        while written < size_bytes:
            block = blocks[dice.randrange(4)]
            start = dice.randrange(len(block)) if size_bytes < len(block) else 0
            block = block[start : start + max(1, size_bytes - written)]
            written += file.write(block)
            if not failed and written > size_bytes * FAILURE_AT:
                file.write(FAILURE.encode())
                failed = True


def alternation() -> str:
    """All signatures as one expression that grep -E understands."""
    patterns = {signature for each in load() for signature in each.signatures}
    return "|".join(sorted(_extended(pattern) for pattern in patterns))


def _extended(pattern: str) -> str:
    found = pattern.replace(r"[^\n]*", ".*").replace(r"[^\n]", ".").replace("(?:", "(").replace("(?i:", "(")
    found = re.sub(r"\[([^]]*)\\d([^]]*)\]", r"[\g<1>0-9\2]", found).replace(r"\d", "[0-9]")
    found = re.sub(r"\[([^]]*)\\s([^]]*)\]", r"[\1[:space:]\2]", found)
    found = re.sub(r"\[([^]]*)\\w([^]]*)\]", r"[\1[:alnum:]_\2]", found)
    found = re.sub(r"\\([^\w\s])(?=[^]]*(?:\[|$))", r"\\\1", found)
    return found.replace("*?", "*").replace("+?", "+").replace("\n", "")


def measured(argv: list[str], env: dict[str, str] | None = None) -> tuple[float, float, str]:
    """Wall seconds, the least of three runs; peak memory of all its processes in MiB, of one more; the output."""
    seconds, peak = float("inf"), 0.0
    surroundings = {**os.environ, **(env or {})}
    with tempfile.TemporaryFile() as out:
        for _ in range(RUNS):
            started = time.monotonic()
            subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, env=surroundings)
            seconds = min(seconds, time.monotonic() - started)
        out.truncate(0)
        out.seek(0)
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=surroundings)
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.02)
        out.seek(0)
        return seconds, peak, out.read().decode("utf-8", "replace")


def _memory(pid: int) -> float:
    """The private memory of a process and its children, in MiB, plus what they share once."""
    total = 0.0
    for each in (pid, *_children(pid)):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except (OSError, ValueError):
            continue
        total += int(re.search(r"^Pss: +(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]
    return total


def _children(pid: int) -> list[int]:
    try:
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return found + [deeper for each in found for deeper in _children(each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--files", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddpdoctor-bench-", dir=given.folder))
    try:
        run(folder, given.bytes, given.files)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, size_bytes: int, files: int) -> None:
    log = folder / "job.log"
    make_log(log, size_bytes)
    megabytes = log.stat().st_size / 1e6
    expression = folder / "patterns"
    expression.write_text(alternation() + "\n")
    doctor = [sys.executable, "-m", "ddpdoctor", "triage", "--format", "json"]
    ways = [
        ("grep -aEc, LC_ALL=C", ["grep", "-aEc", "-f", str(expression), str(log)], {"LC_ALL": "C"}),
        ("grep -aEc, C.UTF-8", ["grep", "-aEc", "-f", str(expression), str(log)], {"LC_ALL": "C.UTF-8"}),
        ("ddpdoctor triage, fast engine", [*doctor, str(log)], {}),
        ("ddpdoctor triage, pure Python", [*doctor, str(log)], {"DDPDOCTOR_ENGINE": "python"}),
    ]
    print(f"{'one file of ' + str(round(megabytes)) + ' MB':<36} {'seconds':>8} {'MB/s':>8} {'MiB':>6}  first cause")
    for name, argv, env in ways:
        seconds, peak, out = measured(argv, env)
        first = re.search(r'"code": "(\w+)"', out)
        print(
            f"{name:<36} {seconds:8.2f} {megabytes / seconds:8.0f} {peak:6.0f}  {first[1] if first else out.strip()[:40]}"
        )
    log.unlink()
    many = folder / "ranks"
    many.mkdir()
    for rank in range(files):
        make_log(many / f"rank{rank}.txt", 1 << 20, seed=rank)
    seconds, peak, out = measured([*doctor, str(many)])
    first = re.search(r'"code": "(\w+)"', out)
    print(
        f"{f'{files} files of 1 MiB':<36} {seconds:8.2f} {files * 1.048576 / seconds:8.0f} {peak:6.0f}  "
        f"{first[1] if first else ''}"
    )


if __name__ == "__main__":
    main()
