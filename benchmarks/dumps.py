"""How long triage takes over the Flight Recorder dumps of 64 ranks with 2,000 entries each.

    python benchmarks/dumps.py [RANKS [ENTRIES]]

Beside it, where torch is installed, `torchfrtrace` over the same folder, which is what its manual recommends.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from flight_dumps import LIBRARY, call, dump, pickled

PROMISED_SECONDS = 3.0
FRAMES = 12
"""A call of DDP has about so many frames between the collective and the script."""


def write(folder: Path, ranks: int, entries: int) -> int:
    """The dumps of a job whose rank 1 left out the last call; returns their size in bytes."""
    between = [{"name": f"wrapper{i}", "filename": LIBRARY, "line": 100 + i} for i in range(FRAMES)]
    total = 0
    for rank in range(ranks):
        count = entries - 1 if rank == 1 else entries
        calls = [
            call(("all_reduce", "broadcast", "_all_gather_base")[i % 3], ((1024, i % 7),), line=i % 40)
            for i in range(count)
        ]
        if rank != 1:
            calls[-1]["state"] = "started"
            calls[-1]["retired"] = False
        for each in calls:
            each["frames"] = [each["frames"][0], *between, each["frames"][1]]
        data = pickled(dump(calls, groups={"0": range(ranks)}, first=1_000_000))
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        total += len(data)
    return total


def _seconds(argv: list[str]) -> tuple[float, str]:
    best, out = float("inf"), ""
    for _ in range(3):
        started = time.monotonic()
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
        best, out = min(best, time.monotonic() - started), done.stdout
    return best, out


def main() -> int:
    """Print the table; 1 if the limit is exceeded."""
    ranks, entries = (
        int(given or usual) for given, usual in zip((*sys.argv[1:3], "", "")[:2], ("64", "2000"), strict=True)
    )
    folder = Path(tempfile.mkdtemp())
    try:
        size = write(folder, ranks, entries)
        mine, out = _seconds([sys.executable, "-m", "ddpdoctor", "triage", str(folder)])
        assert "rank 1 never called it" in out, out
        print(f"{ranks} dumps of {entries} entries, {size / 1e6:.0f} MB")
        print(f"{'ddpdoctor triage':<24}{mine:6.2f} s   names rank 1")
        theirs = shutil.which("torchfrtrace")
        if theirs is not None:
            seconds, said = _seconds([theirs, str(folder)])
            print(
                f"{'torchfrtrace':<24}{seconds:6.2f} s   {'names rank 1' if 'missing ranks: {1}' in said else 'names no rank'}"
            )
    finally:
        shutil.rmtree(folder)
    return 0 if mine <= PROMISED_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
