"""HOST014: a lock file that no process holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.host import ExtensionLock, Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang

LONGEST_BUILD_SECONDS = 1800.0
"""A holder in another container or on another node is invisible: only the age of the lock decides."""


@cause(
    "HOST014",
    "extension-build-lock-stale",
    Severity.ERROR,
    signatures=(r"torch/utils/file_baton\.py", "Lock file exists in build directory"),
)
def extension_build_lock_stale(host: Host) -> Iterator[Finding]:
    """The lock file of a killed build blocks the build of an extension forever.

    ## Why it matters
    torch.utils.cpp_extension waits silently, without using the CPU, until the file `lock` of the build folder
    disappears (newer versions print `Lock file exists in build directory`). A build that was killed never removes
    it.

    ## Fix
    Remove the lock file on that node, and build the extension on one rank before the others.

    ## Example

        ~/.cache/torch_extensions/py311_cu128/fused_adam/lock is 7200 s old and no process holds it

        # before: every rank waits for the lock
        torchrun --nproc-per-node 8 train.py
        # after
        rm ~/.cache/torch_extensions/py311_cu128/fused_adam/lock
        torchrun --nproc-per-node 8 train.py

    ## Source
    torch/utils/file_baton.py: the builder keeps the file open as long as it lives.
    """
    if not host.extension_locks and host.gap("extension_locks") is not None:
        host.need(None, "extension_locks")
    for i, lock in enumerate(host.extension_locks):
        if _is_stale(lock):
            yield Finding(
                f"{lock.path} is {lock.age_seconds:.0f} s old and no process holds it",
                (Evidence(f"host.extension_locks[{i}].holder_pid", "none", "a running build"),),
                fix_command=f"rm {lock.path}",
            )


def _is_stale(lock: ExtensionLock) -> bool:
    if lock.holder_pid is not None:
        return False
    return lock.is_local or lock.age_seconds > LONGEST_BUILD_SECONDS


@extension_build_lock_stale.look
def build_lock(hang: Hang) -> Iterator[Finding]:
    """A rank that waits in torch's FileBaton."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda rank: rank.activity is Activity.BUILD_LOCK)
