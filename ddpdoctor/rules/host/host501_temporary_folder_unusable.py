"""HOST501: the folder for temporary files."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.host import Host, readable
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

LEAST_BYTES = 1 << 20


@cause("HOST501", "temporary-folder-unusable", Severity.ERROR)
def temporary_folder_unusable(host: Host) -> Iterator[Finding]:
    """The folder for temporary files cannot be written to.

    ## Why it matters
    torchrun makes its log folder there before it starts a rank, and multiprocessing its sockets: the job ends with
    `No usable temporary directory found` or `No space left on device`. A TMPDIR that does not exist is passed over by
    Python, but not by compilers.

    ## Fix
    Set TMPDIR to an existing local folder with free space, and remove old files.
    """
    folder = host.need(host.temporary_folder, "temporary_folder")
    if folder.exists is False:
        seen, severity = "does not exist", Severity.WARNING
    elif folder.is_writable is False:
        seen, severity = "is not writable", Severity.WARNING
    elif folder.free_bytes is not None and folder.free_bytes < LEAST_BYTES:
        seen, severity = f"has {readable(folder.free_bytes)} free", Severity.ERROR
    else:
        return
    if folder.path == "/tmp":
        severity = Severity.ERROR
    yield Finding(
        f"the folder for temporary files, {folder.path}, {seen}: expected a writable folder with 1 MiB or more",
        (Evidence("host.temporary_folder", seen, "writable, with free space"),),
        fix_command=None if folder.path == "/tmp" else "export TMPDIR=/tmp",
        severity=severity,
    )
