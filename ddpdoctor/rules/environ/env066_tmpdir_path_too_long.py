"""ENV066: a temporary folder whose path is too long for a socket."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause

SOCKET_PATH_BYTES = 107
"""sockaddr_un.sun_path on Linux without its last NUL, unix(7)."""
ADDED_BYTES = len("/pymp-12345678/listener-12345678")
"""What multiprocessing appends to the folder: util.get_temp_dir and connection.arbitrary_address."""


@cause(
    "ENV066", "tmpdir-path-too-long", Severity.ERROR, scope=CauseScope.PROCESS, signatures=(r"AF_UNIX path too long",)
)
def tmpdir_path_too_long(environ: Environ) -> Iterator[Finding]:
    """TMPDIR is too long for a unix socket in it.

    ## Why it matters
    multiprocessing creates its sockets in the temporary folder, and a socket's path has at most 107 bytes. `OSError:
    AF_UNIX path too long` then comes from a DataLoader worker or a helper thread, depending only on the length of the
    path.

    ## Fix
    Set TMPDIR to a folder with a short path on every node.

    ## Example

        OSError: AF_UNIX path too long

        # before
        export TMPDIR=/scratch/users/name/experiments/2024-05-a-very-long-name-of-a-job/run-000017/temporary
        # after
        export TMPDIR=/tmp
    """
    name = next((n for n in ("TMPDIR", "TEMP", "TMP") if environ.has(n)), None)
    value = environ.get(name) or "" if name else ""
    limit = SOCKET_PATH_BYTES - ADDED_BYTES
    size = len(value.rstrip("/").encode("utf-8", "replace"))
    if name is None or size <= limit:
        return
    yield Finding(
        f"{name} has {size} bytes, too long for sockets (at most {limit}): {shorten(value)}",
        (Evidence(f"environ.variables.{name}", f"{size} bytes", f"at most {limit} bytes"),),
        fix_command=f"export {name}=/tmp",
    )
