"""The output of the NVML child process as one record, which the `gpu` and `topo` collectors share."""

from __future__ import annotations

import json
import os
from dataclasses import field
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command

__all__ = ["Answers", "nvml"]

SECONDS = 5.0
LIBRARY = "libnvidia-ml.so.1"
FOLDERS = (
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


@dataclass(slots=True)
class Answers:
    """`facts[subject][fact]` is a value, `codes[subject][fact]` an error code; `trouble` is why the queries ended early."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    trouble: str | None = None

    def of(self, subject: str) -> dict[str, Any]:
        return self.facts.get(subject, {})

    def absent(self, subject: str) -> dict[str, str]:
        return self.codes.get(subject, {})


def nvml(machine: Machine) -> Answers:
    """Everything that NVML reports about this machine, queried once in a child process that ends within SECONDS."""
    return machine.once("nvml", lambda: _ask(machine))


def _ask(machine: Machine) -> Answers:
    if not _is_installed(machine):
        return Answers(codes={"node": {"init": "LIBRARY_NOT_FOUND"}})
    # Part of the time limit is left for the callers of this function.
    seconds = min(SECONDS, machine.deadline.left * 0.8)
    try:
        done = run(command("ddpdoctor.collectors.nvml"), seconds, environ=machine.environ)
    except LateError as late:
        answers = _fold(late.out)
        call = answers.of("?")
        pending = f" ({call['function']}, {_place(call['subject'])})" if call else ""
        answers.trouble = f"NVML timed out after {seconds:.0f} s{pending}"
        return answers
    answers = _fold(done.out)
    if done.code:
        last = done.err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        answers.trouble = f"the NVML process exited with code {done.code}: {last:.200}"
    return answers


def _is_installed(machine: Machine) -> bool:
    """Whether the loader would find the library. Saves starting a child process on machines without NVIDIA's driver."""
    folders = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return True
    if LIBRARY in machine.environ.get("LD_PRELOAD", ""):
        return True
    root = machine.root
    if any(root.exists(f"{folder}/{LIBRARY}") for folder in FOLDERS) or root.exists("/proc/driver/nvidia"):
        return True
    try:
        return LIBRARY in root.text("/etc/ld.so.cache")
    except OSError:
        return False  # no cache, as in a musl image: the loader uses the folders above only


def _fold(out: bytes) -> Answers:
    answers = Answers()
    for line in out.splitlines():
        try:
            kind, *words = json.loads(line)
        except ValueError:
            continue  # the last line of a killed child may be incomplete
        if kind == "?":
            answers.facts["?"] = {"function": words[0], "subject": words[1]}
            continue
        into = answers.facts if kind == "=" else answers.codes
        into.setdefault(str(words[0]), {})[words[1]] = words[2]
    return answers


def _place(subject: object) -> str:
    return "the node" if subject == "node" else f"GPU {subject}"
