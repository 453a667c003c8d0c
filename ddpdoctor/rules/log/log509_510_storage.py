"""LOG509, LOG510: disks that are full, and files that were replaced on a network file system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.semaphores import no_space_for_semaphores
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG509",
    "disk-full",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    yields_to=("HOST001", "HOST002", "HOST501"),
    signatures=(
        r"\[Err(?:no|or) 28\] No space left on device",
        r"\b[Dd]isk quota exceeded",
        r"\bStorageFull\b",
        r"write error: No space left on device",
        r"\((?:os error 28|ENOSPC)\)|\(28, 'No space left",
        r"ephemeral[- ](?:local )?storage (?:usage )?(?:exceed|limit)|low on resource: ephemeral-storage",
        r"PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
    ),
)
def disk_full(log: Log) -> Iterator[Finding]:
    """A disk that the job writes to is full, or its quota is used up.

    ## Why it matters
    `OSError: [Errno 28] No space left on device` or `[Errno 122] Disk quota exceeded` ends the rank that writes, usually
    while it saves a checkpoint. The file stays incomplete, and the other ranks wait for that rank.

    ## Fix
    Find the full disk on the rank's node: `df -h . /tmp /dev/shm "$HOME"; df -i .; quota -s`. Delete old checkpoints, or point
    the output, TMPDIR and HF_HOME to a larger disk; delete the incomplete checkpoint before the restart.

    ## Example

        OSError: [Errno 28] No space left on device

        # before: 40 checkpoints of 12 GB each in $HOME
        python train.py --output-dir ~/run1
        # after, on every node
        export TMPDIR=/scratch/$USER HF_HOME=/scratch/$USER/hf
        python train.py --output-dir /scratch/$USER/run1 --save-total-limit 2
    """
    of_shm = no_space_for_semaphores(log)
    others = tuple(line for line in log.lines if line not in of_shm)
    yield from ending(disk_full, replace(log, lines=others) if of_shm else log)


@cause(
    "LOG510",
    "stale-file-handle",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"\[Errno 116\] Stale file handle", r"failed with Stale file handle", r"Stale (?:NFS )?file handle"),
)
def stale_file_handle(log: Log) -> Iterator[Finding]:
    """An open file on a network file system was deleted or replaced.

    ## Why it matters
    `OSError: [Errno 116] Stale file handle`: another rank or another job removed or renamed the file, or the server was
    restarted. The more nodes share one folder of caches or checkpoints, the more often it happens.

    ## Fix
    Give every node its own cache (TMPDIR, HF_HOME and TRITON_CACHE_DIR on a local disk), and let one rank write and delete
    shared files, with a barrier before the others read. After a restart of the file server, mount it again on that node.

    ## Example

        OSError: [Errno 116] Stale file handle: '/home/u/.cache/huggingface/datasets/text/…'

        # before: all nodes share the cache in $HOME
        torchrun … train.py
        # after, on every node
        export HF_HOME=/local/$USER/hf TMPDIR=/local/$USER/tmp
    """
    yield from ending(stale_file_handle, log)
