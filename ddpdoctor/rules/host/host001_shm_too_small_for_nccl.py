"""HOST001: shared memory for NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host, local_ranks, readable
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.preconditions import need_gpus

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.topo import Topo

CONNECTION_BYTES = 4096 + 524_288 + 4_915_200 + 4_194_304
CHANNELS = 2
NEIGHBOURS = 2
DATALOADER_BYTES = 64 << 20
COMFORTABLE_BYTES = 1 << 30
CUMEM_NCCL = (2, 24)
CUMEM_DRIVER_CUDA = 12_060
"""NCCL 2.24 with a driver for CUDA 12.6 takes cuMem host memory in place of /dev/shm, where NUMA calls work."""


@rule(
    "HOST001",
    "shm-too-small-for-nccl",
    Severity.ERROR,
    signatures=(
        "Error while creating shared memory segment",
        "failed to extend /dev/shm/nccl-",
        "posix_fallocate failed ?: No space left on device",
        r"Caught signal 7 \(Bus error",
    ),
)
def check(
    host: Host, environ: Environ, gpu: Gpu, topo: Topo | None = None, versions: Versions | None = None
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
    ranks = local_ranks(environ, gpu) or 0
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
        severity=None if is_certain else Severity.WARNING,
    )


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
