"""HOST001, HOST002, HOST003, HOST009 as lines show them: shared, locked and all memory of containers, pods and batch jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.host import readable
from ddpdoctor.facts.launch.programs import Launcher
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import Edit, is_known
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import Container, bytes_of, container_of, wants_rdma
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.host import (
    host001_shm_too_small_for_nccl,
    host002_shm_too_small_for_dataloader,
    host003_memlock_limit_low,
    host009_memory_limit_low,
)
from ddpdoctor.rules.host.host001_shm_too_small_for_nccl import CHANNELS, CONNECTION_BYTES, DATALOADER_BYTES, NEIGHBOURS
from ddpdoctor.rules.host.host003_memlock_limit_low import CONTAINER_BYTES
from ddpdoctor.rules.host.host009_memory_limit_low import CPU_LEAST_BYTES, GPU_LEAST_BYTES
from ddpdoctor.rules.launch.pointing import after, point, revalue, shown
from ddpdoctor.rules.launch.scheduler.counting import option
from ddpdoctor.rules.launch.scheduler.granted import granted_gpus
from ddpdoctor.rules.lines.ranks import ranks_here

__all__ = ["shm_need"]

_WORKERS = re.compile(r"(?:--?|\+|)(?:[\w.-]*[._-])?(?:num[_-]?workers|workers|nworkers)(?:=(\d+))?|-j(\d*)")
_COMFORTABLE = "16g"


def shm_need(ranks: int) -> int:
    """The bytes of /dev/shm that NCCL and the DataLoaders of so many ranks take."""
    return ranks * CHANNELS * NEIGHBOURS * CONNECTION_BYTES + DATALOADER_BYTES


@on_lines(host001_shm_too_small_for_nccl.check)
def for_nccl(launch: Launch) -> Iterator[Finding]:
    """A container of several ranks with GPUs and the 64 MiB of /dev/shm that nobody asked more than."""
    for line in launch.lines:
        box = container_of(line)
        ranks = _ranks_with_nccl(line, box)
        if box is None or box.shm_bytes is None or ranks < 2 or box.shm_bytes >= shm_need(ranks):
            continue
        text = (
            f"/dev/shm of the container has {readable(box.shm_bytes)}{'' if box.shm else ', the default'}: "
            f"{ranks} ranks with NCCL need {readable(shm_need(ranks))} or more"
        )
        yield _larger(launch, line, box, text)


def _ranks_with_nccl(line: Line, box: Container | None) -> int:
    """The ranks of the container, as far as they have GPUs; 0 where NCCL does not use /dev/shm."""
    if box is None or box.gpus is None or line.environ.variables.get("NCCL_SHM_DISABLE") == "1":
        return 0
    ranks = ranks_here(line)
    if ranks is None:
        return 2 if line.starter is not None and box.gpus != 1 and _takes_all(line) else 0
    return min(ranks, box.gpus or ranks)


def _takes_all(line: Line) -> bool:
    return line.plan is not None and line.plan.settings["nproc_per_node"].value in ("gpu", "auto")


def _larger(launch: Launch, line: Line, box: Container, text: str) -> Finding:
    """The line with --shm-size."""
    edits = [after(box.run, f"--shm-size={_COMFORTABLE}")] if box.shm is None else [revalue(box.shm, _COMFORTABLE)]
    word = box.run if box.shm is None else box.shm.value_word
    return point(launch, line, word, text, "--shm-size=16g or --ipc=host", edits, severity=Severity.WARNING)


@on_lines(host002_shm_too_small_for_dataloader.check)
def for_dataloaders(launch: Launch) -> Iterator[Finding]:
    """DataLoader workers in a container with 64 MiB of /dev/shm."""
    for line in launch.lines:
        box, workers = container_of(line), _workers(line)
        if workers < 1:
            continue
        seen = f"{workers} DataLoader workers pass their batches through /dev/shm"
        is_small = box is not None and box.shm_bytes is not None and box.shm_bytes <= DATALOADER_BYTES
        if box is not None and is_small and _ranks_with_nccl(line, box) < 2:
            yield _larger(
                launch, line, box, f"{seen}, which has {readable(box.shm_bytes or 0)} here: expected some GiB"
            )
        pod = line.pod
        if pod is not None and not pod.has_shm and not (line.starter is not None and (pod.gpus or 0) > 1):
            where = (
                Where(file=line.file)
                if pod.at is None
                else Where(file=line.file, line=pod.at.line, column=pod.at.column)
            )
            yield Finding(
                f"{seen}, which has 64 MiB here: expected an emptyDir with medium: Memory",
                (Evidence("launch.pod.shm_bytes", "64 MiB", "some GiB"),),
                where=where,
                severity=Severity.WARNING,
            )


def _workers(line: Line) -> int:
    """num_workers as the line's arguments give it, else the script."""
    layer = line.program
    words = layer.reading.arguments if layer is not None else ()
    for i, word in enumerate(words):
        match = _WORKERS.fullmatch(word.text)
        if match is None:
            continue
        value = match[1] or match[2] or (words[i + 1].text if i + 1 < len(words) else "")
        if value.isdigit():
            return int(value)
    return line.script.workers if line.script is not None else 0


@on_lines(host003_memlock_limit_low.check)
def locked(launch: Launch) -> Iterator[Finding]:
    """RDMA in a container or a shell that may not lock memory."""
    for line in launch.lines:
        box = container_of(line)
        if box is not None and box.has_infiniband and not box.may_lock_memory and _asks_for_rdma(line, box):
            edits = [after(box.run, "--ulimit memlock=-1")]
            text = "the container has RDMA devices and no --ulimit memlock=-1: expected locked memory without limit"
            yield point(launch, line, box.run, text, "--ulimit memlock=-1", edits, severity=Severity.WARNING)
        limit = line.before.get("memlock", "unlimited")
        several = line.plan is not None and line.plan.is_multinode
        low = limit.isdigit() and int(limit) << 10 < CONTAINER_BYTES
        if low and (several or wants_rdma(line.environ.variables)) and line.layer(Launcher.CONTAINER) is None:
            yield Finding(
                f"ulimit -l {limit} allows {readable(int(limit) << 10)} of locked memory: expected unlimited, for RDMA",
                (Evidence("launch.before.memlock", limit, "unlimited"),),
                fix_command="ulimit -l unlimited",
                where=Where(file=line.file, line=line.place(0)[0], column=line.place(0)[1], node=line.node),
                severity=Severity.WARNING,
            )


def _asks_for_rdma(line: Line, box: Container) -> bool:
    named = any((g.value or "").startswith("/dev/infiniband") for g in box.layer.reading.given if g.flag == "--device")
    return named or wants_rdma(line.environ.variables) is not None


@on_lines(host009_memory_limit_low.check)
def limited(launch: Launch) -> Iterator[Finding]:
    """A memory limit of a container, a pod or a batch job below what its ranks take once torch is imported."""
    for line in launch.lines:
        limit, given, source = _memory(line)
        ranks = ranks_here(line)
        if limit is None or not ranks:
            continue
        least = ranks * (GPU_LEAST_BYTES if _has_gpus(line) else CPU_LEAST_BYTES)
        if limit >= least:
            continue
        text = f"{source} allows {readable(limit)} of memory: {ranks} rank{'s' * (ranks > 1)} take {readable(least)} or more"
        severity = None if limit < least // 2 else Severity.WARNING
        here = given is not None and given.value_word in line.argv
        edits: list[Edit] | None = None
        if given is not None and here:
            slurm = line.layer(Launcher.CONTAINER) is None
            edits = [revalue(given, "0" if slurm else f"{ranks * 16}g")] if given.flag != "--mem-per-cpu" else None
        mark = None if line.pod is None else line.pod.memory_at
        found = point(
            launch,
            line,
            given.value_word if given is not None and here else None,
            text,
            readable(least),
            edits,
            severity=severity,
        )
        yield (
            found
            if mark is None
            else Finding(
                text, found.evidence, where=Where(file=line.file, line=mark.line, column=mark.column), severity=severity
            )
        )


def _memory(line: Line) -> tuple[int | None, Given | None, str]:
    """The memory that all ranks of a node may use together, and what says so."""
    if line.pod is not None:
        return line.pod.memory_bytes, None, "the container's limit"
    box = container_of(line)
    if box is not None:
        given = box.memory
        return (bytes_of(given.value), given, shown(given.word)) if given is not None else (None, None, "")
    if line.layer(Launcher.CONTAINER) is not None:
        return None, None, ""
    for layer in (line.layer(Launcher.SRUN), line.batch):
        given = option(layer, ("--mem",))
        if given is not None and is_known(given.value):
            size = bytes_of(given.value, "m")
            return (size or None), given, f"--mem={given.value}"
    return None, None, ""


def _has_gpus(line: Line) -> bool:
    box = container_of(line)
    if box is not None:
        return box.gpus is not None
    return bool(granted_gpus(line)[0])
