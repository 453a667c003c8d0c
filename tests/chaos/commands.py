"""The commands that faults are injected into, with small real inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard
from commandline import ROOT, environment
from flight_dumps import call, dump, pickled

__all__ = ["COMMANDS", "QUICK", "Command", "Materials", "argv", "environ", "stuck_rank"]

SCRIPT = """import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(4)
if rank == 0:
    dist.all_reduce(x)
dist.destroy_process_group()
"""
LOG = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 10, in <module>
[rank1]:     loss.backward()
[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB
W1122 10:00:00.000000 4711 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4712 closing signal SIGTERM
E1122 10:00:01.000000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4713)
"""
SBATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
srun torchrun --nnodes 2 --nproc_per_node 8 train.py
"""
MANIFEST = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: a}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
          - name: pytorch
            image: a
            command: [torchrun, --nproc_per_node, "2", train.py]
"""
FAILING_JOB = """import sys, time
for step in range(8):
    print("step", step, flush=True)
    time.sleep(0.1)
print("[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
sys.exit(7)
"""
HEALTHY_JOB = "import time\nfor step in range(10):\n    print('step', step, flush=True)\n    time.sleep(0.1)\n"
STUCK = "import time\ntime.sleep(3600)\n"
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Command:
    """One command line. `words` may contain {m}, the folder of the materials, {o}, the run's own folder, and {pid}, a stuck rank.

    Args:
        seconds: how long it takes on an idle machine, about.
        bound: the seconds after which it must have ended whatever happens to it, on a busy machine.
        codes: the exit codes without a fault.
        mebibytes: address space that it needs.
        module: what is started, as `python -m`.
        standard_input: the file that is piped into it.
        is_wrong: its input is faulty: a verdict `pass` or the exit code 0 is wrong whatever happens.
        writes: how a report is requested: "output" (--output), "stdout" (--format json), "" none.
        needs_torch: it starts ranks.
        keeps: begins of the names of temporary files that it may leave, and says so.
    """

    name: str
    words: tuple[str, ...]
    seconds: float = 1.0
    bound: float = 75.0
    codes: tuple[int, ...] = (0,)
    mebibytes: int = 300
    module: str = "ddpdoctor"
    standard_input: str | None = None
    is_wrong: bool = False
    writes: str = "output"
    needs_torch: bool = False
    keeps: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()


def _command(name: str, line: str, /, **more: object) -> Command:
    own, dashes, launch = line.partition(" -- ")
    tail = ("--", *launch.split()) if dashes else ()
    report = {"output": ("--format", "json", "--output", "{o}/report.json"), "stdout": ("--format", "json"), "": ()}
    words = (*own.split(), *report[str(more.get("writes", "output"))], *tail)
    return Command(name, words, **more)  # type: ignore[arg-type]


JOB = f"{sys.executable} {{m}}"
COMMANDS = (
    _command("version", "--version", seconds=0.05, writes=""),
    _command("help", "help check", seconds=0.15, writes=""),
    _command("overview", "--help", seconds=0.1, writes=""),
    _command("explain", "explain HOST001", writes="", seconds=0.8),
    _command("rules", "rules", writes="", seconds=1.2),
    _command("env", "env", seconds=0.6),
    _command("env-of-facts", "env --facts {m}/a.json", seconds=0.6, writes="stdout"),
    _command("ports", "ports", seconds=0.6),
    _command("gpus", "gpus", seconds=0.6),
    _command("topo", "topo", seconds=0.6),
    _command("net", "net", seconds=0.8),
    _command("host", "host", seconds=0.6, writes="stdout"),
    _command("versions", "versions", seconds=0.6),
    _command("collect", "collect -o {o}/facts.json", writes=""),
    _command("compare", "compare --fail-on warning {m}/a.json {m}/b.json", codes=(1,), is_wrong=True, seconds=1.2),
    _command("hang-of-facts", "hang --facts {m}/a.json", codes=(0, 1, 3)),
    _command("hang", "hang --no-stacks --watch 1 {pid}", codes=(0, 1, 3), seconds=2.0),
    _command("triage-log", "triage {m}/logs/rank1.log", codes=(1,), is_wrong=True),
    _command("triage-folder", "triage {m}/logs", codes=(1,), is_wrong=True, writes="stdout"),
    _command("triage-many", "triage {m}/many", codes=(1,), is_wrong=True, seconds=2.5),
    _command("triage-input", "triage -", codes=(1,), is_wrong=True, standard_input="logs/rank1.log"),
    _command("triage-json-input", "triage -", codes=(0, 1, 3), standard_input="a.json"),
    _command("triage-archive", "triage {m}/logs.tar.gz", codes=(1,), is_wrong=True),
    _command("triage-zstd", "triage {m}/rank1.log.zst", codes=(1,), is_wrong=True),
    _command("triage-dumps", "triage {m}/dumps", codes=(1,), is_wrong=True),
    _command("lint-line", "lint -- torchrun --nnodes 2 train.py --nproc_per_node 4", codes=(1,), is_wrong=True),
    _command("lint-script", "lint {m}/train.py", codes=(1,), is_wrong=True),
    _command("lint-files", "lint {m}/job.sbatch {m}/job.yaml", codes=(1,), is_wrong=True, seconds=1.5),
    _command("lint-folder", "lint {m}/scripts", codes=(1,), is_wrong=True, seconds=3.0),
    _command("check-line", "check --no-probe -- torchrn train.py", codes=(1,), is_wrong=True, seconds=1.5),
    _command("check-machine", "check --no-probe", codes=(0, 1), seconds=1.5),
    _command(
        "check-nodes",
        f"check --no-probe --join-timeout 2 --timeout 20 -- {sys.executable} -m torch.distributed.run --nnodes 2 "
        "--node_rank 0 --master_addr 127.0.0.1 --master_port {port} {m}/healthy.py",
        codes=(1,),
        is_wrong=True,
        seconds=5.0,
        needs_torch=True,
    ),
    _command("check", "check", codes=(0, 1), seconds=3.0, mebibytes=2500, needs_torch=True),
    _command("check-timed", "check --timeout 20", codes=(0, 1), seconds=3.5, mebibytes=2500, needs_torch=True),
    _command("probe", "probe --nproc-per-node 2 --timeout 20", seconds=4.0, mebibytes=2500, needs_torch=True),
    _command(
        "probe-rank",
        "--timeout 20",
        module="ddpdoctor.probe",
        environ=(("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "{port}")),
        seconds=4.0,
        mebibytes=2500,
        needs_torch=True,
    ),
    _command(
        "rehearse",
        f"rehearse --seconds 15 --timeout 30 -- {sys.executable} -m torch.distributed.run --standalone "
        "--nproc-per-node 2 {m}/train.py",
        codes=(1,),
        is_wrong=True,
        seconds=8.0,
        mebibytes=4000,
        needs_torch=True,
    ),
    _command("run-healthy", f"run --no-check -- {JOB}/healthy.py", seconds=1.5, keeps=("ddpdoctor_output_",)),
    _command(
        "run-failing",
        f"run --no-check -- {JOB}/failing.py",
        codes=(7,),
        is_wrong=True,
        seconds=2.5,
        keeps=("ddpdoctor_output_",),
    ),
    _command(
        "run-checked",
        f"run --no-probe --timeout 20 -- {JOB}/failing.py",
        codes=(7,),
        is_wrong=True,
        seconds=4.0,
        keeps=("ddpdoctor_output_",),
    ),
)
QUICK = tuple(each for each in COMMANDS if not each.needs_torch and each.seconds <= 1.2)


class Materials:
    """The inputs of all runs, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        texts = {
            "train.py": SCRIPT,
            "failing.py": FAILING_JOB,
            "healthy.py": HEALTHY_JOB,
            "job.sbatch": SBATCH,
            "job.yaml": MANIFEST,
            "logs/rank0.log": "step 1\n" * 2000,
            "logs/rank1.log": "step 1\n" * 2000 + LOG,
        }
        texts |= {f"scripts/part{at}/train{at}.py": SCRIPT for at in range(24)}
        texts |= {f"many/rank{at}.log": f"[rank{at}]: step 1\n" * 2000 + (LOG if at == 1 else "") for at in range(80)}
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for name, memory in (("a", 512), ("b", 64)):
            facts = {"schema": "ddpdoctor.facts/1", "collected_at": "", "hostname": name}
            facts |= {"versions": {"torch": "2.5.0" if name == "a" else "2.4.0"}}
            (folder / f"{name}.json").write_text(
                json.dumps({**facts, "host": {"memory_total_bytes": memory * MEBIBYTE * 1024}})
            )
        (folder / "dumps").mkdir(exist_ok=True)
        for rank in range(2):
            calls = [call("all_reduce"), call("all_reduce" if rank else "broadcast", state="scheduled", line=11)]
            (folder / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(pickled(dump(calls, groups={"0": (0, 1)})))
        with tarfile.open(folder / "logs.tar.gz", "w:gz") as archive:
            archive.add(folder / "logs", "logs")
        (folder / "rank1.log.zst").write_bytes(
            zstandard.ZstdCompressor().compress((folder / "logs/rank1.log").read_bytes())
        )


def stuck_rank() -> subprocess.Popen[bytes]:
    """A rank that waits; the caller ends it."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return subprocess.Popen([sys.executable, "-c", STUCK], env={**environment(), **variables}, stdin=subprocess.DEVNULL)


def argv(command: Command, places: dict[str, str]) -> list[str]:
    """The command line of one run."""
    return [sys.executable, "-m", command.module, *_filled(command.words, places)]


def environ(command: Command, places: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """The environment of one run."""
    names = [name for name, _ in command.environ]
    values = _filled([value for _, value in command.environ], places)
    return {
        **environment({"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}),
        **dict(zip(names, values, strict=True)),
        **more,
    }


def _filled(words: Sequence[str], places: dict[str, str]) -> list[str]:
    return [_fill(word, places) for word in words]


def _fill(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace("{" + name + "}", value)
    return word
