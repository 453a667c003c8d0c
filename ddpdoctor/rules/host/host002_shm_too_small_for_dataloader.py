"""HOST002: /dev/shm is too small for DataLoader workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import Host, local_ranks, readable
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import container_of
from ddpdoctor.rules import cause
from ddpdoctor.rules.host.shm_sizes import DATALOADER_BYTES
from ddpdoctor.rules.launch.container_shm import larger_shm, ranks_with_nccl

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log

SMALL_BYTES = 64 << 20
"""Docker's default without --shm-size."""
FULL_BYTES = 1 << 20


@cause(
    "HOST002",
    "shm-too-small-for-dataloader",
    Severity.ERROR,
    signatures=(
        "Unexpected bus error encountered in worker",
        "killed by signal: Bus error",
        r"unable to allocate shared memory\(shm\) for file",
        r"unable to (write to|resize) file <[^>]{0,300}>[^\n]{0,100}No space left on device",
    ),
)
def shm_too_small_for_dataloader(
    host: Host, environ: Environ, gpu: Gpu | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """/dev/shm is too small for the batches of DataLoader workers.

    ## Why it matters
    Workers pass every batch through /dev/shm. When it is full, one rank dies with `Unexpected bus error encountered in
    worker` or `unable to allocate shared memory(shm) for file </torch_…>: No space left on device`, possibly only in
    the second epoch, and the other ranks hang in their next all_reduce.

    ## Fix
    Give the container a larger /dev/shm (--shm-size=16g, --ipc=host, or an emptyDir with medium: Memory), or use
    fewer workers; torch.multiprocessing.set_sharing_strategy("file_system") does not help, because it uses /dev/shm
    as well.

    ## Example

        RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.

        # before
        docker run --gpus all IMAGE python train.py --num-workers 8
        # after
        docker run --gpus all --shm-size=16g IMAGE python train.py --num-workers 8

    ## Source
    Confirmed in https://github.com/fastai/docker-containers/issues/21 (`--shm-size=3G`) and
    https://github.com/apache/mxnet/issues/18224.
    """
    if host.shm_kind == "missing":
        yield Finding(
            "/dev/shm does not exist; DataLoader workers, multiprocessing locks, and NCCL need it",
            (Evidence("host.shm_kind", "missing", "tmpfs"),),
            fix_command="mount -t tmpfs -o size=16g tmpfs /dev/shm",
        )
        return
    free = host.need(host.shm_free_bytes, "shm_free_bytes")
    has_nccl = gpu is not None and bool(gpu.devices) and (local_ranks(environ, gpu, job) or 0) >= 2
    if has_nccl and environ.settings.get("NCCL_SHM_DISABLE") != "1":
        return  # HOST001 asks for more than this
    if free > SMALL_BYTES:
        return
    left = sum(leftover.size_bytes for leftover in host.shm_leftovers if leftover.owner == "dead")
    yield Finding(
        f"/dev/shm has {readable(free)} free; DataLoader workers need more than 64 MiB"
        + (f"; dead processes hold {readable(left)}" if left else ""),
        (Evidence("host.shm_free_bytes", readable(free), "more than 64 MiB"),),
        severity=None if free < FULL_BYTES else Severity.WARNING,
    )


_WORKERS = re.compile(r"(?:--?|\+|)(?:[\w.-]*[._-])?(?:num[_-]?workers|workers|nworkers)(?:=(\d+))?|-j(\d*)")


@shm_too_small_for_dataloader.look
def for_dataloaders(launch: Launch) -> Iterator[Finding]:
    """DataLoader workers in a container with 64 MiB of /dev/shm."""
    for line in launch.lines:
        container, workers = container_of(line), _workers(line)
        if workers < 1:
            continue
        users = f"{workers} DataLoader worker{'s' * (workers > 1)}"
        is_small = container is not None and container.shm_bytes is not None and container.shm_bytes <= DATALOADER_BYTES
        if container is not None and is_small and ranks_with_nccl(line, container) < 2:
            text = f"the container's /dev/shm has {readable(container.shm_bytes or 0)}; {users} need some GiB"
            yield larger_shm(launch, line, container, text)
        pod = line.pod
        if pod is not None and not pod.has_shm and not (line.starter is not None and (pod.gpus or 0) > 1):
            where = (
                Where(file=line.file)
                if pod.at is None
                else Where(file=line.file, line=pod.at.line, column=pod.at.column)
            )
            yield Finding(
                f"the pod's /dev/shm has 64 MiB (the default); {users} need some GiB",
                (Evidence("launch.pod.shm_bytes", "64 MiB", "some GiB"),),
                label="mount a larger /dev/shm",
                where=where,
                severity=Severity.WARNING,
            )


def _workers(line: LaunchLine) -> int:
    """num_workers from the line's arguments, else from the script."""
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


@shm_too_small_for_dataloader.look
def no_room_in_shm(log: Log) -> Iterator[Finding]:
    """A batch, or a semaphore of multiprocessing, that found no room in /dev/shm."""
    from ddpdoctor.rules.log.semaphores import no_space_for_semaphores
    from ddpdoctor.rules.log.signatures import finding_of, signed

    yield from signed(shm_too_small_for_dataloader, log)
    lines = no_space_for_semaphores(log)
    if lines:
        title = "/dev/shm has no space for a semaphore of multiprocessing"
        yield finding_of(log, lines, title, blames_speaker=True)
