"""VERSION010: the backend nccl with a torch that was built without NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point, shown

BACKENDS = ("PL_TORCH_DISTRIBUTED_BACKEND", "DISTRIBUTED_BACKEND", "TORCH_DISTRIBUTED_BACKEND")
"""Variables with which frameworks choose the backend; rules of scripts judge a script's own choice."""


@cause("VERSION010", "nccl-not-built-in", Severity.ERROR, signatures=("Distributed package doesn't have NCCL",))
def nccl_not_built_in(versions: Versions, environ: Environ) -> Iterator[Finding]:
    """The backend nccl is selected, but torch was built without NCCL.

    ## Why it matters
    init_process_group fails with `Distributed package doesn't have NCCL built in`. On Linux that means the CPU
    build of torch.

    ## Fix
    Use the backend gloo on machines without GPUs, or install the CUDA build of torch.

    ## Example

        RuntimeError: Distributed package doesn't have NCCL built in

        # before, with the CPU build of torch
        dist.init_process_group("nccl")
        # after
        dist.init_process_group("gloo")
    """
    if versions.has_nccl is None:
        not_here("no torch")
    name = next((name for name in BACKENDS if (environ.get(name) or "").lower() == "nccl"), None)
    if name and not versions.has_nccl:
        yield Finding(
            f"{name}=nccl, but torch {versions.torch} ({versions.build} build) has no NCCL",
            (Evidence(f"environ.variables.{name}", "nccl", "gloo"),),
            fix_command=f"export {name}=gloo",
        )


_BACKEND_OPTION = re.compile(r"--?(?:[\w-]*[_-])?(?:dist[_-]?)?backend(?:=(.*))?")


@nccl_not_built_in.look
def cpu_build(launch: Launch) -> Iterator[Finding]:
    """nccl is selected, and the line's torch is the CPU build: by --torch, or installed by the file itself."""
    for line in launch.lines:
        build = f"torch {launch.torch}" if launch.torch_from == "option" and "+cpu" in launch.torch else ""
        if line.before.get("torch") == "cpu" and line.layer(LauncherKind.CONTAINER) is None:
            build = "the torch that this file installs"
        program = line.program
        if not build or program is None:
            continue
        word, choice = _asked_for(line, program)
        if choice:
            text = f"{choice}, but {build} is a CPU build without NCCL"
            yield point(launch, line, word, text, "gloo", None, label="use gloo, or the CUDA build")


def _asked_for(line: LaunchLine, program: Layer) -> tuple[Word | None, str]:
    words = program.reading.arguments
    for i, word in enumerate(words):
        match = _BACKEND_OPTION.fullmatch(word.text)
        value = (
            match[1] if match and match[1] is not None else words[i + 1].text if match and i + 1 < len(words) else ""
        )
        if match and value == "nccl":
            return word, f"{shown(word)}{'' if match[1] else ' nccl'} selects nccl"
    if line.script is not None and line.script.backend == "nccl":
        return program.reading.script, f"{line.script.path} uses nccl"
    return None, ""
