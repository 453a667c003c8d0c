"""Time to verdict of the probe and of a bare torch job in the same fault, on simulated hosts. Needs root.

python benchmarks/faults.py [--only NAME,…] [--cap 60]

The bare job is 15 lines of all_reduce with torch's default timeouts; it is ended after the cap.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from lab.hosts import Lab, hosts
from lab.processes import Process
from startup import ALL_REDUCE

JOIN_SECONDS = 5.0
TABLE = "add table inet bench\nadd chain inet bench input { type filter hook input priority 1; }\n"


def nothing(lab: Lab) -> None:
    """Healthy."""


def only_the_master_port(lab: Lab) -> None:
    for host in lab.hosts:
        rules = ("tcp dport 29500 accept", "tcp sport 29500 accept", "iif eth0 meta l4proto tcp drop")
        host.tool("nft", "-f", "-", stdin=TABLE + "".join(f"add rule inet bench input {rule}\n" for rule in rules))


def large_packets_vanish(lab: Lab) -> None:
    for host in lab.hosts:
        host.mtu(9000)


def debian_hostname(lab: Lab) -> None:
    for host in lab.hosts:
        others = "".join(f"{each.address} {each.name}\n" for each in lab.hosts if each is not host)
        host.file("hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n{others}")


def master_port_dropped(lab: Lab) -> None:
    lab.host(0).drop(port=29500, peer=lab.host(1))


FAULTS: dict[str, tuple[Callable[[Lab], None], tuple[int, ...], signal.Signals | None]] = {
    "healthy": (nothing, (0, 1), None),
    "rank 1 never starts": (nothing, (0,), None),
    "rank 0 never starts": (nothing, (1,), None),
    "master port dropped": (master_port_dropped, (0, 1), None),
    "data ports dropped": (only_the_master_port, (0, 1), None),
    "MTU black hole": (large_packets_vanish, (0, 1), None),
    "hostname is 127.0.1.1": (debian_hostname, (0, 1), None),
    "rank 1 stopped": (nothing, (0, 1), signal.SIGSTOP),
    "rank 1 killed": (nothing, (0, 1), signal.SIGKILL),
}
"""What is wrong, which of the two ranks start, and what happens to the process of rank 1 that imports torch."""


def start(lab: Lab, ranks: tuple[int, ...], words: list[str]) -> dict[int, Process]:
    env = {
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    folder = os.getcwd()
    return {
        rank: lab.host(rank).start([w.format(rank=rank) for w in words], env=env | {"RANK": str(rank)}, cwd=folder)
        for rank in ranks
    }


def hurt(process: Process, number: signal.Signals) -> None:
    """Send the signal to the process that has mapped torch, as soon as it has."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for pid in process.pids():
            try:
                if "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                    os.kill(pid, number)
                    return
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in between
        time.sleep(0.02)


def run(name: str, words: list[str], cap: float) -> tuple[float, bool]:
    """Seconds until the last rank that can end has ended, and whether the cap cut it off."""
    fault, ranks, number = FAULTS[name]
    with hosts(2) as lab:
        fault(lab)
        started = time.monotonic()
        processes = start(lab, ranks, words)
        if number is not None:
            hurt(processes[1], number)
        for process in processes.values():
            try:
                process.wait(max(cap - (time.monotonic() - started), 0.1))
            except subprocess.TimeoutExpired:
                return cap, True
        return time.monotonic() - started, False


def told(folder: Path) -> str:
    """The causes in the reports of both hosts."""
    found = []
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        found += [f["code"] for f in report["findings"] if f["role"] == "cause"] or [report["verdict"]]
    return ", ".join(dict.fromkeys(found))


def main() -> int:
    """Print the table; 1 if the probe hung or found no cause."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--cap", type=float, default=60.0)
    options = parser.parse_args()
    bad = 0
    print(f"{'fault':22} {'probe':>8} {'bare torch':>11}  what the probe said  (join timeout {JOIN_SECONDS:.0f} s)")
    for name in options.only.split(",") if options.only else FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(ALL_REDUCE)
            output = str(Path(folder) / "{rank}.json")
            probe = [sys.executable, "-m", "ddpdoctor.probe", "--format", "json", "--output", output]
            ours, is_cut = run(name, [*probe, "--join-timeout", str(JOIN_SECONDS)], options.cap)
            said = told(Path(folder))
            theirs, hung = run(name, [sys.executable, str(script)], options.cap)
        bad += is_cut or not said
        print(f"{name:22} {ours:7.1f}s {f'> {theirs:.0f}s' if hung else f'{theirs:.1f}s':>11}  {said}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
