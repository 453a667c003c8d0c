"""HOST001: shared memory for NCCL."""

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
"""NCCL 2.24 with a driver for CUDA 12.6 takes cuMem host memory in place of /dev/shm, where NUMA calls work."""


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
    Where two GPUs cannot reach each other directly, NCCL moves data through files in /dev/shm, about 9.2 MiB for each
    connection and channel. Without the room it stops with `unhandled system error`, and only NCCL_DEBUG=WARN adds
    `Error while creating shared memory segment /dev/shm/nccl-… (size 9637888)`; a bare `Bus error` is the same thing.
    Containers get 64 MiB when nobody asks for more.

    ## Fix
    Start the container with --shm-size=16g or --ipc=host; in Kubernetes mount an emptyDir with medium: Memory on
    /dev/shm. NCCL_SHM_DISABLE=1 avoids it at the price of speed.

    ## Source
    NCCL transport/shm.cc: one receive buffer is 4096 + 524288 + 4915200 + 4194304 bytes.
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
        f"/dev/shm has {readable(free)} free: {ranks} ranks with NCCL need {readable(need)} or more, 1 GiB is comfortable",
        (Evidence("host.shm_free_bytes", readable(free), f"at least {readable(max(need, COMFORTABLE_BYTES))}"),),
        fix_command=fix_command,
    ).if_certain(is_certain)


def _goes_through_shm(host: Host, environ: Environ, gpu: Gpu, topo: Topo | None, versions: Versions | None) -> bool:
    """Some pair of GPUs has no direct path, and NCCL cannot take CUDA's host memory instead of /dev/shm."""
    cells = [cell for row in (topo.matrix() if topo else ()) for cell in row]
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
    """A container of several ranks with GPUs and the 64 MiB of /dev/shm that nobody asked more than."""
    for line in launch.lines:
        box = container_of(line)
        ranks = ranks_with_nccl(line, box)
        if box is None or box.shm_bytes is None or ranks < 2 or box.shm_bytes >= shm_need(ranks):
            continue
        text = (
            f"/dev/shm of the container has {readable(box.shm_bytes)}{'' if box.shm else ', the default'}: "
            f"{ranks} ranks with NCCL need {readable(shm_need(ranks))} or more"
        )
        yield larger_shm(launch, line, box, text)


@shm_too_small_for_nccl.look
def shared_memory_of_pod(launch: Launch) -> Iterator[Finding]:
    """A pod of several ranks with the 64 MiB of /dev/shm that a container gets, or a volume that is too small."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or line.environ.variables.get("NCCL_SHM_DISABLE") == "1":
            continue
        ranks = _ranks(line, pod)
        need = shm_need(ranks)
        if ranks < 2 or (pod.has_shm and (pod.shm_bytes is None or pod.shm_bytes >= need)):
            continue
        if pod.has_shm:
            seen = f"/dev/shm is limited to {readable(pod.shm_bytes or 0)}"
            where = manifest_place(line, pod.shm_at)
        else:
            seen, where = "nothing is mounted on /dev/shm, which leaves it 64 MiB", manifest_place(line, pod.at)
        yield Finding(
            f"{seen}: {ranks} ranks with NCCL need {readable(need)} or more",
            (Evidence("launch.pod.shm_bytes", seen, f"at least {readable(need)}"),),
            fix="Mount an emptyDir with medium: Memory and a sizeLimit of some GiB on /dev/shm.",
            where=where,
            severity=Severity.WARNING,
        )


def _ranks(line: LaunchLine, pod: Pod) -> int:
    """How many ranks the pod runs with a GPU each; 0 when the line does not tell that it runs several."""
    if line.starter is None or pod.gpus is None or pod.gpus < 2:
        return 0
    nproc = None if line.plan is None else line.plan.nproc
    return pod.gpus if nproc is None else min(nproc, pod.gpus)


NO_SEGMENT = (r"Error while creating shared memory segment",)


NO_ROOM = re.compile(r"No space left|posix_fallocate|ftruncate|extend /dev/shm|Bus error")


BLAMES_CUDA = "NCCL could not make its shared memory, and blames a call to CUDA"


UNSURE_ROOM = (
    "Undetermined: CUDA cannot register memory of the "
    "host here (WSL, or a container that refuses it: HOST010), the driver does not fit this NCCL, or /dev/shm is too small "
    "(HOST001: df -h /dev/shm)"
)


FIX_OF_ROOM = (
    "Look at df -h /dev/shm while the job starts; if it has room, run once with NCCL_SHM_DISABLE=1 and compare the "
    "versions of NCCL and of the driver."
)


REASON = re.compile(r"shmutils\.\w+:\d+ NCCL WARN (?P<reason>.+)")


@shm_too_small_for_nccl.look
def segment_not_made(log: Log) -> Iterator[Finding]:
    """A segment that could not be made: for lack of room, unless NCCL has just told another reason."""
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
    said = REASON.search(reasons[0].text)
    warning = said["reason"] if said else ""
    title = f"NCCL could not make its shared memory, for another reason than a lack of room ({warning})"
    undetermined = (
        "Undetermined: CUDA cannot register memory of the host here (a container or machine that refuses it, HOST010), the "
        "driver is too old for this NCCL, or /dev/shm is too small after all (HOST001: df -h /dev/shm); with NCCL_SHM_DISABLE=1 "
        "the job runs without it"
    )
    lines = [*reasons, *matching_lines(log, NO_SEGMENT)]
    yield replace(finding_of(log, lines, title, undetermined, blames_speaker=True), fix=FIX_OF_ROOM)


def _may_be_cuda(log: Log) -> bool:
    """Whether NCCL says that a call to CUDA failed, and nothing that a call to the system did or that room lacks."""
    texts = [line.text for line in (*log.lines, *log.tails)]
    if any(NO_ROOM.search(text) or "ncclSystemError" in text or "unhandled system error" in text for text in texts):
        return False
    return any("ncclUnhandledCudaError" in text or "unhandled cuda error" in text for text in texts)


def _reason(log: Log, line: LogLine) -> LogLine | None:
    """What NCCL's code for shared memory has told just before in the same process, if it is no lack of room."""
    from ddpdoctor.logs.context_patterns import context_lines

    told = [
        each
        for each, _ in context_lines(log, "nccl_warns")
        if each.source == line.source and 0 < line.number - each.number <= SHM_REASON_LINES and each.who == line.who
    ]
    return told[-1] if told and REASON.search(told[-1].text) and not NO_ROOM.search(told[-1].text) else None
