"""HOST014: a lock that nobody holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.host import ExtensionLock, Host
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang

LONGEST_BUILD_SECONDS = 1800.0
"""A holder in another container or on another node cannot be seen: only age tells."""


@cause(
    "HOST014",
    "extension-build-lock-stale",
    Severity.ERROR,
    signatures=(r"torch/utils/file_baton\.py", "Lock file exists in build directory"),
)
def extension_build_lock_stale(host: Host) -> Iterator[Finding]:
    """A lock that a killed build has left blocks the build of an extension for ever.

    ## Why it matters
    torch.utils.cpp_extension waits until the file `lock` of the build folder goes away, without CPU use and without a
    word (newer versions print `Lock file exists in build directory`). A build that was killed never removes it.

    ## Fix
    Remove the lock file, and build the extension on one rank before the others.

    ## Source
    torch/utils/file_baton.py: the builder keeps the file open as long as it lives.
    """
    if not host.extension_locks and host.gap("extension_locks") is not None:
        host.need(None, "extension_locks")
    for i, lock in enumerate(host.extension_locks):
        if _is_stale(lock):
            yield Finding(
                f"{lock.path} is {lock.age_seconds:.0f} s old and no process holds it: expected no lock without a build",
                (Evidence(f"host.extension_locks[{i}].holder_pid", "none", "a running build"),),
                fix_command=f"rm {lock.path}",
            )


def _is_stale(lock: ExtensionLock) -> bool:
    if lock.holder_pid is not None:
        return False
    return lock.is_local or lock.age_seconds > LONGEST_BUILD_SECONDS


@extension_build_lock_stale.look
def build_lock(hang: Hang) -> Iterator[Finding]:
    """A rank in torch's FileBaton."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda each: each.activity is Activity.BUILD_LOCK)
