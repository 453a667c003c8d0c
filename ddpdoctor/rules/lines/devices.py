"""ENV063, ENV064, NET044, VERSION010 as lines show them: GPUs, RDMA devices and the build of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import Launcher
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import Edit, Word, is_known
from ddpdoctor.facts.visibility import cut, listed
from ddpdoctor.findings import Finding, Severity, Where
from ddpdoctor.launch.container import container_of, wants_rdma
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.environ.cuda_devices import one_gpu_per_rank
from ddpdoctor.rules.environ.cuda_visible_devices import cuda_visible_devices_invalid
from ddpdoctor.rules.launch.pointing import after, point, replace, revalue, shown
from ddpdoctor.rules.launch.scheduler.counting import option, tasks_per_node
from ddpdoctor.rules.lines.ranks import ranks_here
from ddpdoctor.rules.net.rdma import not_in_container
from ddpdoctor.rules.versions import version010_nccl_not_built_in

CVD = "CUDA_VISIBLE_DEVICES"
_ONE_EACH = re.compile(r"(per_task:1|single:1|map_gpu:|mask_gpu:)")
_LOCAL = re.compile(r"\$\{?(SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID|LOCAL_RANK)\b")
_BACKEND_OPTION = re.compile(r"--?(?:[\w-]*[_-])?(?:dist[_-]?)?backend(?:=(.*))?")


@on_lines(cuda_visible_devices_invalid)
def cut_short(launch: Launch) -> Iterator[Finding]:
    """An entry of CUDA_VISIBLE_DEVICES that ends the list on every machine: repeated, or no entry at all."""
    for line in launch.lines:
        value = line.environ.variables.get(CVD, "")
        wrong = cut(value) if is_known(value) else None
        if wrong is None or line.program is None:
            continue
        entry, why, _ = wrong
        count, ranks = listed(value) or 0, ranks_here(line)
        word = next((v.word for v in reversed(line.program.variables) if v.name == CVD), None)
        kept = _kept(value)
        edits = [replace(word, f"{CVD}={kept}")] if word is not None and kept and word.assignment else None
        text = f"{CVD}={value} is cut at {entry!r} ({why}): CUDA sees {count} GPU{'s' * (count != 1)}; expected every entry once"
        enough = ranks is not None and ranks <= count
        severity = Severity.WARNING if enough else None
        found = point(launch, line, word, text, "entries that exist, each once", edits, severity=severity)
        mark = line.places.get(CVD)
        if word is None and mark is not None:
            found = Finding(
                text, found.evidence, where=Where(file=line.file, line=mark.line, column=mark.column), severity=severity
            )
        yield found


def _kept(value: str) -> str:
    entries = [entry.strip() for entry in value.split(",")]
    return ",".join(dict.fromkeys(e for e in entries if re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", e)))


@on_lines(one_gpu_per_rank)
def one_each(launch: Launch) -> Iterator[Finding]:
    """srun or a shell in the task shows each rank its own GPU, and the script takes the one with its local rank."""
    for line in launch.lines:
        program, script = line.program, line.script
        if program is None or script is None or not script.takes_gpu_of_local_rank or line.starter is not None:
            continue
        if line.environ.variables.get("LOCAL_RANK") == "0" or program.launcher is not Launcher.PYTHON:
            continue
        each, _ = tasks_per_node(line)
        if each == 1:
            continue
        own = next((v.word for v in reversed(program.variables) if v.name == CVD), None)
        text = f"{script.path} selects the GPU of its local rank: expected all GPUs of the node, or cuda:0"
        if own is not None:
            if _LOCAL.search(own.raw):
                message = f"{shown(own)} shows each rank one GPU, its cuda:0, and {text}"
                yield point(launch, line, own, message, "all GPUs, or cuda:0", None)
            continue
        word, seen = _bound(line)
        if seen:
            yield point(
                launch,
                line,
                word,
                f"{seen} shows each task one GPU, its cuda:0, and {text}",
                "--gpus-per-node",
                _unbound(line, word, each),
            )


def _bound(line: Line) -> tuple[Word | None, str]:
    """The option of srun or sbatch that gives every task one GPU of its own."""
    srun = line.layer(Launcher.SRUN)
    if srun is None:
        return None, ""
    bind = option(srun, ("--gpu-bind",)) or option(line.batch, ("--gpu-bind",))
    if bind is not None:
        if not _ONE_EACH.match(bind.value or ""):
            return None, ""
        return (bind.value_word if bind.value_word in line.argv else None), f"--gpu-bind={bind.value}"
    for layer in (srun, line.batch):
        given = option(layer, ("--gpus-per-task",))
        if given is not None and (given.value or "").rpartition(":")[2] == "1":
            return (given.value_word if given.value_word in line.argv else None), f"--gpus-per-task={given.value}"
    return None, ""


def _unbound(line: Line, word: Word | None, each: int | None) -> list[Edit] | None:
    srun = line.layer(Launcher.SRUN)
    assert srun is not None
    given = option(srun, ("--gpus-per-task",))
    if given is None or each is None:
        return [after(srun.program, "--gpu-bind=none")] if word is None else None
    if given.is_joined:
        return [replace(given.word, f"--gpus-per-node={each}")]
    return [replace(given.word, "--gpus-per-node"), revalue(given, str(each))]


@on_lines(not_in_container)
def without_infiniband(launch: Launch) -> Iterator[Finding]:
    """RDMA is asked for in a container or a pod that is given no RDMA device."""
    for line in launch.lines:
        asked = wants_rdma(line.environ.variables)
        several = line.plan is not None and line.plan.is_multinode
        box = container_of(line)
        if asked is None or not (several or (line.pod is not None and (line.pod.pods or 0) > 1)):
            continue
        if box is not None and not box.has_infiniband:
            edits = [after(box.run, "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1")]
            if box.may_lock_memory:
                edits = [after(box.run, "--device=/dev/infiniband")]
            text = f"{asked}, and the container is given no RDMA device: expected --device=/dev/infiniband"
            yield point(launch, line, box.run, text, "--device=/dev/infiniband", edits, severity=Severity.WARNING)
        pod = line.pod
        if pod is not None and not pod.has_rdma:
            text = f"{asked}, and the container asks for no RDMA resource: expected the device plugin's resource in its limits"
            found = point(launch, line, None, text, "a resource such as rdma/hca", None, severity=Severity.WARNING)
            at = pod.at
            yield (
                found
                if at is None
                else Finding(
                    text,
                    found.evidence,
                    where=Where(file=line.file, line=at.line, column=at.column),
                    severity=Severity.WARNING,
                )
            )


@on_lines(version010_nccl_not_built_in.check)
def cpu_build(launch: Launch) -> Iterator[Finding]:
    """nccl is asked for, and the line's torch is the CPU build: by --torch, or installed by the file itself."""
    for line in launch.lines:
        build = f"torch {launch.torch}" if launch.torch_from == "option" and "+cpu" in launch.torch else ""
        if line.before.get("torch") == "cpu" and line.layer(Launcher.CONTAINER) is None:
            build = "the torch that this file installs"
        program = line.program
        if not build or program is None:
            continue
        word, asked = _asked_for(line, program)
        if asked:
            text = f"{asked}, and {build} is a CPU build without NCCL: expected gloo, or the CUDA build"
            yield point(launch, line, word, text, "gloo", None)


def _asked_for(line: Line, program: Layer) -> tuple[Word | None, str]:
    words = program.reading.arguments
    for i, word in enumerate(words):
        match = _BACKEND_OPTION.fullmatch(word.text)
        value = (
            match[1] if match and match[1] is not None else words[i + 1].text if match and i + 1 < len(words) else ""
        )
        if match and value == "nccl":
            return word, f"{shown(word)}{'' if match[1] else ' nccl'} asks for nccl"
    if line.script is not None and line.script.backend == "nccl":
        return program.reading.script, f"{line.script.path} asks for nccl"
    return None, ""
