# ruff: noqa: E501 (lines of real logs)
"""Situations as users meet them, each with what its first five lines must say: the cause, the place, and what to type next.

`python tests/first_lines.py` writes docs/first-five-lines.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from commandline import ROOT, environment

LINES = 5
SECONDS = 60.0

TRAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"
KEY_ERROR = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 22, in <module>
[rank1]:     main()
[rank1]:   File "/home/u/train.py", line 10, in main
[rank1]:     lr = cfg["momentum"]
[rank1]: KeyError: 'momentum'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 14, in main
[rank0]:     dist.all_reduce(x)
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:30145
"""
OUT_OF_MEMORY = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 41, in step
[rank3]:     loss = model(batch)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.1 GiB is free.
"""
WATCHDOG = """\
[rank0]:[E1120 20:25:40.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 30, in <module>
[rank1]:     batch = next(loader)
[rank1]: StopIteration
"""
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Port 1:
		State: Down
		Physical state: Polling
		Rate: 10
		Base lid: 65535
		Link layer: InfiniBand
"""
RANK_0_ONLY = """\
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.destroy_process_group()
"""
LATE_OPTION = """\
#!/bin/bash
module load cuda
#SBATCH --nodes=2
srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29400 train.py
"""
ONE_NODE = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
srun torchrun --standalone --nproc-per-node=2 train.py
"""
HEALTHY = "".join(f"[rank0]: step {i} loss {2.0 / (i + 1):.4f} 1.2 it/s\n" for i in range(60)) + "training finished\n"
HUNG = """\
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("joined", dist.get_rank(), flush=True)
if dist.get_rank() == 2:
    time.sleep(120)
dist.all_reduce(torch.ones(4))
"""
BARRIER = """\
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.destroy_process_group()
"""
SBATCH = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
export MASTER_ADDR=localhost
export MASTER_PORT=29500
srun torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=29500 train.py
"""
POD = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: img
              command: ["torchrun", "train.py", "--nproc_per_node=8"]
"""
NOTEBOOK = json.dumps(
    {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": BARRIER}],
    }
)


@dataclass(frozen=True)
class Situation:
    """One situation: the files of its folder, the command, and expressions for cause, place and next step.

    `interrupt` is a text of standard error after which the command gets Ctrl-C; `job` is started beside the command.
    """

    title: str
    command: tuple[str, ...]
    cause: str
    place: str
    next: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    interrupt: str | None = None
    job: str | None = None
    holds_port: bool = False
    is_slow: bool = False
    """It starts ranks or waits for other nodes."""


def own_address() -> str:
    """An address of this machine that is not the loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _words(line: str) -> list[str]:
    return line.split()


LINE = ("check", "--no-probe", "--no-meet", "--")

SITUATIONS = (
    Situation(
        "launcher options after the script",
        (*LINE, *_words("torchrun train.py --nproc_per_node 8")),
        "LAUNCH001",
        r"\^\^\^\^",
        r"^torchrun --nproc_per_node 8 train\.py$",
        {"train.py": TRAIN},
    ),
    Situation(
        "two nodes without a rendezvous address",
        ("lint", "--", *_words("torchrun --nnodes 2 train.py")),
        "LAUNCH025",
        r"\^\^\^\^",
        r"^torchrun --nnodes 2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train\.py$",
        {"train.py": TRAIN},
    ),
    Situation(
        "a misspelled launcher",
        (*LINE, *_words("torchrn --nproc-per-node 2 train.py")),
        "torchrn",
        r"torchrn --nproc",
        r"torchrun --nproc-per-node 2 train\.py",
        {"train.py": TRAIN},
    ),
    Situation(
        "a script that does not exist",
        (*LINE, *_words("torchrun --nproc-per-node 2 trian.py")),
        "trian.py",
        r"\^\^\^\^",
        r"train\.py",
        {"train.py": TRAIN},
    ),
    Situation(
        "a package that is not installed",
        (*LINE, *_words("torchrun --nproc-per-node 2 train.py")),
        "flash_attn_not_here",
        r"train\.py:2",
        r"pip install|not installed",
        {"train.py": "import os\nimport flash_attn_not_here\n" + TRAIN},
    ),
    Situation(
        "a module that does not exist",
        (*LINE, *_words("torchrun --nproc-per-node 2 -m project.trian")),
        r"project\.trian",
        r"\^\^\^\^",
        r"project\.train",
        {"project/__init__.py": "", "project/train.py": TRAIN},
    ),
    Situation(
        "a misspelled interpreter",
        (*LINE, *_words("pyhton train.py")),
        "pyhton",
        "pyhton train",
        r"python",
        {"train.py": TRAIN},
    ),
    Situation(
        "the other node never joins",
        (
            "check",
            "--no-probe",
            "--join-timeout",
            "2",
            "--",
            *_words(f"torchrun --nnodes 2 --node-rank 0 --master-addr {own_address()} train.py"),
        ),
        r"did not join|not join|missing",
        r"node.?(rank )?1",
        r"[Ss]tart|[Cc]heck|[Rr]un",
        {"train.py": TRAIN},
        is_slow=True,
    ),
    Situation(
        "the master port is in use",
        (*LINE, *_words("torchrun --nproc_per_node 2 --master_addr 127.0.0.1 --master_port PORT train.py")),
        "NET001",
        "PORT",
        r"^torchrun .*--master_port \d+",
        {"train.py": TRAIN},
        holds_port=True,
    ),
    Situation(
        "the master's name does not resolve",
        (
            "check",
            "--no-probe",
            "--join-timeout",
            "3",
            "--",
            *_words("torchrun --nnodes 2 --node-rank 1 --master-addr gpu-07.invalid train.py"),
        ),
        "resolve",
        r"gpu-07\.invalid",
        r"[Uu]se|[Cc]heck|getent|[Nn]ame",
        {"train.py": TRAIN},
        is_slow=True,
    ),
    Situation(
        "an exception on one rank",
        ("triage", "slurm-4712.out"),
        "KeyError: 'momentum'",
        "rank 1",
        r"fix",
        {"slurm-4712.out": KEY_ERROR},
    ),
    Situation(
        "out of memory",
        ("triage", "slurm-4712.out"),
        "out of memory",
        "rank 3|GPU 3",
        r"fix",
        {"slurm-4712.out": OUT_OF_MEMORY},
    ),
    Situation(
        "a watchdog timeout",
        ("triage", "job.log"),
        "StopIteration",
        "rank 1",
        "same number of batches",
        {"job.log": WATCHDOG},
    ),
    Situation(
        "three jobs in one folder",
        ("triage", "logs"),
        "KeyError",
        r"2 failed \(slurm-4712, slurm-4713\)",
        r"fix|--job",
        {"logs/slurm-4712.out": KEY_ERROR, "logs/slurm-4713.out": OUT_OF_MEMORY, "logs/slurm-4714.out": HEALTHY},
    ),
    Situation("an empty log", ("triage", "job.log"), "empty", r"job\.log", r"^next: ", {"job.log": ""}),
    Situation("a healthy log", ("triage", "job.log"), "completed|pass", r"job\.log", "pass", {"job.log": HEALTHY}),
    Situation(
        "a binary file as a log",
        ("triage", "model.pt"),
        "no(t a)? text|not text|binary",
        r"model\.pt",
        "^next: ",
        {"model.pt": bytes(range(256)) * 40},
    ),
    Situation("a log that does not exist", ("triage", "nope.log"), "[Nn]o such file", r"nope\.log", "^next: ", {}),
    Situation(
        "a job that hangs", ("hang",), "sleep|wait", "rank 2", "fix", {"stuck.py": HUNG}, job="stuck.py", is_slow=True
    ),
    Situation(
        "hang of a process that is not a rank",
        ("hang", str(os.getppid())),
        "rank",
        str(os.getppid()),
        "^next: ",
        {},
    ),
    Situation(
        "a barrier on rank 0 only", ("lint", "train.py"), "barrier", r"train\.py:4:5", "fix", {"train.py": BARRIER}
    ),
    Situation("a notebook", ("lint", "train.ipynb"), "barrier", r"train\.ipynb:\d", "fix", {"train.ipynb": NOTEBOOK}),
    Situation(
        "an sbatch file with localhost as master",
        ("lint", "job.sbatch"),
        "localhost",
        r"job\.sbatch:\d",
        "fix",
        {"job.sbatch": SBATCH, "train.py": TRAIN},
    ),
    Situation(
        "a manifest with the options after the script",
        ("lint", "job.yaml"),
        "LAUNCH001",
        r"job\.yaml:\d",
        "fix",
        {"job.yaml": POD},
    ),
    Situation(
        "a YAML file that is not a job",
        ("lint", "values.yaml"),
        "no|not",
        r"values\.yaml",
        "^next: ",
        {"values.yaml": "a: 1\nb: [2, 3]\n"},
    ),
    Situation(
        "two nodes with the same rank",
        ("lint", *(w for _ in "01" for w in ("--node", "torchrun --nnodes=2 --node-rank=0 --master-addr=a train.py"))),
        "node.rank",
        r"--node |node 1",
        "fix|--node-rank=1",
        {"train.py": TRAIN},
    ),
    Situation("a rule that does not exist", ("explain", "LAUNCH1"), "LAUNCH1", "unknown", "LAUNCH00", {}),
    Situation(
        "Ctrl-C while check waits for the other node",
        (
            "check",
            "--no-probe",
            "--join-timeout",
            "30",
            "--",
            *_words(f"torchrun --nnodes 2 --node-rank 0 --master-addr {own_address()} train.py"),
        ),
        "the other nodes: interrupted|hostname",
        r":29500|hostname \S+ resolves",
        "fix|of waiting at",
        {"train.py": TRAIN},
        interrupt="wait",
        is_slow=True,
    ),
    Situation("Ctrl-C while triage reads", ("triage", "-"), "interrupted", "standard input", "", {}, interrupt=""),
    Situation(
        "run of a job that fails",
        ("run", "--no-check", "--", "torchrun", "--nproc-per-node", "2", "train.py"),
        "KeyErro",
        r"train\.py:\d|rank",
        "fix",
        {"train.py": TRAIN.replace("dist.destroy", "{}['momentum']\ndist.destroy")},
        is_slow=True,
    ),
    Situation(
        "a healthy machine",
        ("check", "--no-probe", "--select", "VERSION,ENV"),
        r"^this machine: .* pass$",
        "this machine",
        "",
        {},
    ),
    Situation(
        "nvidia-smi without a GPU",
        ("triage", "nvidia-smi.txt"),
        "finds no GPU",
        r"nvidia-smi\.txt:2",
        "lspci -d 10de:",
        {"nvidia-smi.txt": "Wed Nov 18 10:00:00 2026\nNo devices were found\n"},
    ),
    Situation(
        "ibstat with a port that is down",
        ("triage", "ibstat.txt"),
        "mlx5_0 is DOWN",
        r"ibstat\.txt:5",
        "fix",
        {"ibstat.txt": IBSTAT},
    ),
    Situation(
        "a rehearsal in which one rank calls a barrier",
        ("rehearse", "--", *_words("torchrun --nproc-per-node 2 rank0.py")),
        "rank 0 barrier",
        r"rank0\.py:5",
        "fix: Call it on all ranks",
        {"rank0.py": RANK_0_ONLY},
        is_slow=True,
    ),
    Situation(
        "a rehearsal that calls no collective",
        ("rehearse", "--", *_words("torchrun --nproc-per-node 2 empty.py")),
        "no rank called a collective",
        r"empty\.py",
        "--seconds 120",
        {"empty.py": "print('hello')\n"},
        is_slow=True,
    ),
    Situation(
        "an #SBATCH line after the first command",
        ("lint", "job.sbatch"),
        "sbatch ignores #SBATCH --nodes=2",
        r"job\.sbatch:3",
        "Move all #SBATCH lines",
        {"job.sbatch": LATE_OPTION, "train.py": TRAIN},
    ),
    Situation(
        "a variable in the list form of CMD",
        ("lint", "Dockerfile"),
        "no shell expands it",
        "Dockerfile:2",
        "fix: Use the shell form",
        {"Dockerfile": 'FROM pytorch/pytorch\nCMD ["torchrun", "--nproc-per-node=$NGPUS", "train.py"]\n'},
    ),
    Situation(
        "an empty standard input",
        ("lint", "-"),
        "empty",
        "standard input|-",
        "^next: ",
        {},
    ),
    Situation(
        "the text of an error without a log",
        ("explain", "Duplicate GPU detected"),
        "Two ranks of the job use the same GPU",
        "GPU005",
        "local-rank-argument-constant|ddpdoctor explain|nproc",
        {},
    ),
    Situation(
        "a command that is misspelled",
        ("help", "chek"),
        "unknown command",
        "chek",
        "did you mean check",
        {},
    ),
    Situation(
        "the processes of a batch script",
        ("lint", "--show-processes", "loop.sbatch"),
        "2 processes",
        r"loop\.sbatch",
        "node-0",
        {"loop.sbatch": ONE_NODE, "train.py": TRAIN},
    ),
)


def screen(situation: Situation, folder: Path) -> list[str]:
    """The lines that a user reads: standard output, or standard error where it is empty."""
    for name, content in situation.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with _Beside(situation, folder) as beside:
        words = [word.replace("PORT", str(beside.port)) for word in situation.command]
        command = [sys.executable, "-m", "ddpdoctor", *words]
        env = environment()
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=env,
        ) as process:
            if situation.interrupt is not None:
                _interrupt(process, situation.interrupt)
            out, err = process.communicate(timeout=SECONDS)
    text = out if out.strip() else err
    if situation.command[0] == "run":  # after what the job itself printed
        rows = err.splitlines()
        text = "\n".join(rows[1 + max(at for at, row in enumerate(rows) if "its output is kept" in row) :])
    return [line.replace(str(beside.port), "PORT") if situation.holds_port else line for line in text.splitlines()]


def _interrupt(process: subprocess.Popen[str], after: str) -> None:
    assert process.stderr is not None
    if not after:
        time.sleep(1.5)
    while after and after not in (line := process.stderr.readline()):
        assert line, f"it ended before it said {after!r}"
    process.send_signal(signal.SIGINT)


class _Beside:
    """What runs beside the command: a listener on a port, or a job."""

    def __init__(self, situation: Situation, folder: Path) -> None:
        self._situation = situation
        self._folder = folder
        self._socket = socket.socket()
        self._job: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> _Beside:
        if self._situation.holds_port:
            self._socket.bind(("127.0.0.1", 0))
            self._socket.listen()
            self.port = self._socket.getsockname()[1]
        if self._situation.job is not None:
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "3",
                self._situation.job,
            ]
            self._job = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert self._job.stdout is not None
            joined = 0
            while joined < 3:
                line = self._job.stdout.readline()
                if not line:
                    self.__exit__()
                    raise AssertionError("the job ended before its ranks had joined")
                joined += line.count("joined")
            time.sleep(1)
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()
        if self._job is not None:
            self._job.terminate()
            self._job.wait(30)
            assert self._job.stdout is not None
            self._job.stdout.close()


def missing(situation: Situation, lines: list[str]) -> list[str]:
    """What of cause, place and next step the first five lines do not say."""
    text = "\n".join(lines[:LINES])
    wanted = {"cause": situation.cause, "place": situation.place, "next": situation.next}
    return [name for name, expression in wanted.items() if not re.search(expression, text, re.MULTILINE)]


def page(shown: Callable[[Situation], list[str]]) -> str:
    """The page docs/first-five-lines.md."""
    parts = []
    good = 0
    for situation in SITUATIONS:
        lines = shown(situation)
        lacking = missing(situation, lines)
        good += not lacking
        verdict = f"missing: {', '.join(lacking)}" if lacking else "cause, place, and next step are there"
        command = " ".join(word if " " not in word else f"'{word}'" for word in situation.command)
        body = "\n".join(lines[:LINES])
        parts.append(
            f"## {situation.title[0].upper()}{situation.title[1:]}\n\n`ddpdoctor {command}`: {verdict}\n\n```\n{body}\n```\n"
        )
    head = (
        "# The first five lines\n\n"
        "What a user reads first in common situations. `python tests/first_lines.py` writes this page by running each command, and\n"
        "`tests/cli/test_first_lines.py` holds that the first five lines name the cause, the place, and what to type next.\n\n"
        f"{good} of {len(SITUATIONS)} situations do. An expression decides that here. A reader who had never seen ddpdoctor and\n"
        "got only an earlier version of these lines, without the commands, named all three in 26 of 31. What was missing then (a\n"
        "remedy for inputs that are not understood and for `StopIteration`, the failed jobs of a folder, the verdict of a healthy\n"
        "machine) is demanded by the expressions now; no new reader has seen the result.\n"
    )
    return "\n".join([head, *parts])


def _shown(situation: Situation) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        programs = str(Path(sys.executable).parent)
        return [line.replace(folder, "/job").replace(programs, "/venv/bin") for line in screen(situation, Path(folder))]


if __name__ == "__main__":
    (ROOT / "docs/first-five-lines.md").write_text(page(_shown))
