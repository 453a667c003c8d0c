"""HOST002: shared memory for DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import Host, local_ranks, readable
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

SMALL_BYTES = 64 << 20
"""What Docker gives without --shm-size."""
FULL_BYTES = 1 << 20


@rule(
    "HOST002",
    "shm-too-small-for-dataloader",
    Severity.ERROR,
    signatures=(
        "Unexpected bus error encountered in worker",
        "killed by signal: Bus error",
        r"unable to allocate shared memory\(shm\) for file",
        r"unable to (write to|resize) file <[^>]*>[^\n]*No space left on device",
    ),
)
def check(host: Host, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """/dev/shm is too small for the batches of DataLoader workers.

    ## Why it matters
    Workers hand every batch over in /dev/shm. When it is full, one rank dies of `Unexpected bus error encountered in
    worker` or `unable to allocate shared memory(shm) for file </torch_…>: No space left on device`, perhaps only in
    the second epoch, and the other ranks hang in their next all_reduce.

    ## Fix
    Give the container a larger /dev/shm (--shm-size=16g, --ipc=host, or an emptyDir with medium: Memory), or use fewer
    workers; torch.multiprocessing.set_sharing_strategy("file_system") does not help here, it uses /dev/shm as well.
    """
    if host.shm_kind == "missing":
        yield Finding(
            "/dev/shm does not exist: expected a tmpfs, for multiprocessing locks, DataLoader workers and NCCL",
            (Evidence("host.shm_kind", "missing", "tmpfs"),),
            fix_command="mount -t tmpfs -o size=16g tmpfs /dev/shm",
        )
        return
    has_nccl = gpu is not None and bool(gpu.devices) and (local_ranks(environ, gpu) or 0) >= 2
    if has_nccl and environ.settings.get("NCCL_SHM_DISABLE") != "1":
        return  # HOST001 asks for more than this
    free = host.need(host.shm_free_bytes, "shm_free_bytes")
    if free > SMALL_BYTES:
        return
    left = sum(each.size_bytes for each in host.shm_leftovers if each.owner == "dead")
    yield Finding(
        f"/dev/shm has {readable(free)} free, expected more than 64 MiB: DataLoader workers pass their batches through it"
        + (f"; {readable(left)} belong to dead processes" if left else ""),
        (Evidence("host.shm_free_bytes", readable(free), "more than 64 MiB"),),
        severity=None if free < FULL_BYTES else Severity.WARNING,
    )
