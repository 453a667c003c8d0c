"""HOST501: the folder for temporary files."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.host import Host, readable
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

LEAST_BYTES = 1 << 20


@cause("HOST501", "temporary-folder-unusable", Severity.ERROR)
def temporary_folder_unusable(host: Host) -> Iterator[Finding]:
    """The folder for temporary files is not writable.

    ## Why it matters
    torchrun creates its log folder there before it starts a rank, and multiprocessing its sockets: the job ends
    with `No usable temporary directory found` or `No space left on device`. Python ignores a TMPDIR that does not
    exist, but compilers do not.

    ## Fix
    Set TMPDIR to an existing local folder with free space, and remove old files.

    ## Example

        FileNotFoundError: [Errno 2] No usable temporary directory found in ['/scratch/tmp', '/tmp', '/var/tmp', '/usr/tmp']

        # before: /scratch/tmp does not exist on this node
        export TMPDIR=/scratch/tmp
        # after
        export TMPDIR=/tmp
    """
    folder = host.need(host.temporary_folder, "temporary_folder")
    if folder.exists is False:
        problem, severity = "does not exist", Severity.WARNING
    elif folder.is_writable is False:
        problem, severity = "is not writable", Severity.WARNING
    elif folder.free_bytes is not None and folder.free_bytes < LEAST_BYTES:
        problem, severity = f"has {readable(folder.free_bytes)} free", Severity.ERROR
    else:
        return
    if folder.path == "/tmp":
        severity = Severity.ERROR
    yield Finding(
        f"{folder.path}, the folder for temporary files, {problem}",
        (Evidence("host.temporary_folder", problem, "writable, with free space"),),
        fix_command=None if folder.path == "/tmp" else "export TMPDIR=/tmp",
        severity=severity,
    )
