"""HOST001: /dev/shm is too small for NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host, local_ranks, readable
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.pod import Pod
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.container import container_of
from ddpdoctor.logs.distances import SHM_REASON_LINES
from ddpdoctor.rules import cause
from ddpdoctor.rules.host.shm_sizes import CHANNELS, CONNECTION_BYTES, DATALOADER_BYTES, NEIGHBOURS
from ddpdoctor.rules.launch.container_shm import larger_shm, ranks_with_nccl, shm_need
from ddpdoctor.rules.launch.manifest.places import manifest_place
from ddpdoctor.rules.preconditions import need_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log, LogLine
    from ddpdoctor.facts.topo import Topo

COMFORTABLE_BYTES = 1 << 30
CUMEM_NCCL = (2, 24)
CUMEM_DRIVER_CUDA = 12_060
"""NCCL 2.24 with a driver for CUDA 12.6 uses cuMem host memory instead of /dev/shm if NUMA calls work."""


@cause(
    "HOST001",
    "shm-too-small-for-nccl",
    Severity.ERROR,
    candidates=("HOST010", "HOST001"),
    signatures=(
        "Error while creating shared memory segment",
        "failed to extend /dev/shm/nccl-",
        "posix_fallocate failed ?: No space left on device",
        r"Caught signal 7 \(Bus error",
    ),
)
def shm_too_small_for_nccl(
    host: Host,
    environ: Environ,
    gpu: Gpu,
    topo: Topo | None = None,
    versions: Versions | None = None,
    job: Job | None = None,
) -> Iterator[Finding]:
    """/dev/shm is too small for NCCL's shared memory transport.

    ## Why it matters
    If two GPUs have no direct access to each other, NCCL moves data through files in /dev/shm, about 9.2 MiB per
    connection and channel; containers get 64 MiB by default. When it is full, NCCL fails with `unhandled system
    error` (with NCCL_DEBUG=WARN also `Error while creating shared memory segment /dev/shm/nccl-… (size 9637888)`)
    or a bare `Bus error`.

    ## Fix
    Start the container with --shm-size=16g or --ipc=host; in Kubernetes mount an emptyDir with medium: Memory on
    /dev/shm. NCCL_SHM_DISABLE=1 avoids /dev/shm, but is slower.

    ## Example

        NCCL WARN Error while creating shared memory segment /dev/shm/nccl-vGv0xq (size 9637888)

        # before
        docker run --gpus all IMAGE torchrun --nproc-per-node 8 train.py
        # after
        docker run --gpus all --shm-size=16g IMAGE torchrun --nproc-per-node 8 train.py

    ## Source
    NCCL transport/shm.cc: one receive buffer is 4096 + 524288 + 4915200 + 4194304 bytes.
    Confirmed in https://github.com/NVIDIA/nccl/issues/342 (a larger /dev/shm) and
    https://github.com/fal-ai-community/video-diffusion-speedrun/issues/2 (`--shm-size=1g`).
    """
    ranks = local_ranks(environ, gpu, job) or 0
    need_gpus(gpu)
    if ranks < 2:
        not_here("fewer than two ranks on this node")
    if environ.settings.get("NCCL_SHM_DISABLE") == "1":
        return
    free = host.need(host.shm_free_bytes, "shm_free_bytes")
    need = ranks * CHANNELS * NEIGHBOURS * CONNECTION_BYTES + DATALOADER_BYTES
    if free >= max(need, COMFORTABLE_BYTES):
        return
    is_certain = free < need and _goes_through_shm(host, environ, gpu, topo, versions)
    fix_command = "docker run --shm-size=16g …" if host.container in ("docker", "podman") else None
    yield Finding(
        f"/dev/shm has {readable(free)} free; NCCL needs {readable(max(need, COMFORTABLE_BYTES))} for {ranks} ranks",
        (Evidence("host.shm_free_bytes", readable(free), f"at least {readable(max(need, COMFORTABLE_BYTES))}"),),
        fix_command=fix_command,
    ).if_certain(is_certain)


def _goes_through_shm(host: Host, environ: Environ, gpu: Gpu, topo: Topo | None, versions: Versions | None) -> bool:
    """Whether some pair of GPUs has no direct path, and NCCL cannot use CUDA's host memory instead of /dev/shm."""
    cells = [cell for row in (topo.matrix(is_usable=True) if topo else ()) for cell in row]
    is_apart = environ.settings.get("NCCL_P2P_DISABLE") == "1" or any(cell in ("PHB", "NODE", "SYS") for cell in cells)
    nccl = versions.nccl.version if versions and versions.nccl else None
    has_host_memory = (
        environ.settings.get("NCCL_CUMEM_HOST_ENABLE") != "0"
        and host.numa_calls_allowed is True
        and (gpu.driver_cuda or 0) >= CUMEM_DRIVER_CUDA
        and numbers(nccl or "") >= CUMEM_NCCL
    )
    return is_apart and not has_host_memory


@shm_too_small_for_nccl.look
def for_nccl(launch: Launch) -> Iterator[Finding]:
    """A container with several ranks and GPUs and only the default 64 MiB of /dev/shm."""
    for line in launch.lines:
        container = container_of(line)
        ranks = ranks_with_nccl(line, container)
        if container is None or container.shm_bytes is None or ranks < 2 or container.shm_bytes >= shm_need(ranks):
            continue
        text = (
            f"the container's /dev/shm has {readable(container.shm_bytes)}{'' if container.shm else ' (the default)'};"
            f" NCCL needs {readable(shm_need(ranks))} for {ranks} ranks"
        )
        yield larger_shm(launch, line, container, text)


@shm_too_small_for_nccl.look
def shared_memory_of_pod(launch: Launch) -> Iterator[Finding]:
    """A pod of several ranks with the default 64 MiB of /dev/shm, or with a volume that is too small."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or line.environ.variables.get("NCCL_SHM_DISABLE") == "1":
            continue
        ranks = _ranks(line, pod)
        need = shm_need(ranks)
        if ranks < 2 or (pod.has_shm and (pod.shm_bytes is None or pod.shm_bytes >= need)):
            continue
        if pod.has_shm:
            size, where = readable(pod.shm_bytes or 0), manifest_place(line, pod.shm_at)
        else:
            size, where = "64 MiB (the default)", manifest_place(line, pod.at)
        yield Finding(
            f"the pod's /dev/shm has {size}; NCCL needs {readable(need)} for {ranks} ranks",
            (Evidence("launch.pod.shm_bytes", size, f"at least {readable(need)}"),),
            fix="Mount an emptyDir with medium: Memory and a sizeLimit of some GiB on /dev/shm.",
            label="mount a larger /dev/shm",
            where=where,
            severity=Severity.WARNING,
        )


def _ranks(line: LaunchLine, pod: Pod) -> int:
    """How many ranks the pod runs with a GPU each; 0 unless the line shows that it runs several."""
    if line.starter is None or pod.gpus is None or pod.gpus < 2:
        return 0
    nproc = None if line.plan is None else line.plan.nproc
    return pod.gpus if nproc is None else min(nproc, pod.gpus)


NO_SEGMENT = (r"Error while creating shared memory segment",)


NO_ROOM = re.compile(r"No space left|posix_fallocate|ftruncate|extend /dev/shm|Bus error")


BLAMES_CUDA = "NCCL could not create its shared memory: a CUDA call failed"


UNSURE_ROOM = (
    "Either CUDA cannot register host memory here (WSL, or a container that forbids it: HOST010), the driver does not fit "
    "this NCCL, or /dev/shm is too small (HOST001); `df -h /dev/shm` on that node decides"
)


FIX_OF_ROOM = (
    "Run `df -h /dev/shm` on the node while the job starts; if it has space, run once with NCCL_SHM_DISABLE=1 and compare "
    "the versions of NCCL and the driver."
)


REASON = re.compile(r"shmutils\.\w+:\d+ NCCL WARN (?P<reason>.+)")


@shm_too_small_for_nccl.look
def segment_not_made(log: Log) -> Iterator[Finding]:
    """A segment that could not be created: because /dev/shm is full, unless NCCL has just printed another reason."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of, signed

    reasons = [reason for line in matching_lines(log, NO_SEGMENT) if (reason := _reason(log, line)) is not None]
    if not reasons and matching_lines(log, NO_SEGMENT) and _may_be_cuda(log):
        blamed = matching_lines(log, NO_SEGMENT)
        yield replace(finding_of(log, blamed, BLAMES_CUDA, UNSURE_ROOM, blames_speaker=True), fix=FIX_OF_ROOM)
        return
    if not reasons or len(reasons) < len(matching_lines(log, NO_SEGMENT)):
        yield from signed(shm_too_small_for_nccl, log)
        return
    match = REASON.search(reasons[0].text)
    warning = match["reason"] if match else ""
    title = f"NCCL could not create its shared memory ({warning})"
    undetermined = (
        "Either CUDA cannot register host memory here (a container or machine that forbids it, HOST010), the driver is too "
        "old for this NCCL, or /dev/shm is too small after all (HOST001); `df -h /dev/shm` on that node decides, and "
        "NCCL_SHM_DISABLE=1 avoids it"
    )
    lines = [*reasons, *matching_lines(log, NO_SEGMENT)]
    yield replace(finding_of(log, lines, title, undetermined, blames_speaker=True), fix=FIX_OF_ROOM)


def _may_be_cuda(log: Log) -> bool:
    """Whether NCCL prints that a CUDA call failed, and neither a failed system call nor a lack of space."""
    texts = [line.text for line in (*log.lines, *log.tails)]
    if any(NO_ROOM.search(text) or "ncclSystemError" in text or "unhandled system error" in text for text in texts):
        return False
    return any("ncclUnhandledCudaError" in text or "unhandled cuda error" in text for text in texts)


def _reason(log: Log, line: LogLine) -> LogLine | None:
    """What NCCL's shared memory code printed just before in the same process, unless it is a lack of space."""
    from ddpdoctor.logs.context_patterns import context_lines

    warnings = [
        warning
        for warning, _ in context_lines(log, "nccl_warns")
        if warning.source == line.source
        and 0 < line.number - warning.number <= SHM_REASON_LINES
        and warning.who == line.who
    ]
    last = warnings[-1] if warnings else None
    return last if last is not None and REASON.search(last.text) and not NO_ROOM.search(last.text) else None
