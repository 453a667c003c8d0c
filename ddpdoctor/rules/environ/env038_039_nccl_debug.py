"""ENV038, ENV039: what NCCL logs, and to which file."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.settings_table import TABLE
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, line, value

__all__ = ["nccl_debug_file_shared", "nccl_debug_verbose"]

MANY_RANKS = 64
LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")


@cause("ENV038", "nccl-debug-verbose", Severity.NOTE)
def nccl_debug_verbose(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """NCCL_DEBUG makes NCCL log too much, or is not a valid level.

    ## Why it matters
    TRACE, or INFO from many ranks, floods the log and slows the job down. An invalid level logs nothing at all,
    even when something fails.

    ## Fix
    Set NCCL_DEBUG=WARN for daily work; with INFO add NCCL_DEBUG_FILE=nccl.%h.%p.log.

    ## Example

        NCCL_DEBUG=TRACE logs every call of every rank

        # before
        export NCCL_DEBUG=TRACE
        # after
        export NCCL_DEBUG=WARN

    ## Source
    NCCL documentation, NCCL_DEBUG; src/debug.cc.
    """
    level = (value(environ, "NCCL_DEBUG") or "").strip().upper()
    ranks = _ranks(environ, launch)
    if level and not TABLE["NCCL_DEBUG"].allows(level):
        wrong = "is not a level of NCCL, so nothing is logged"
        yield about(environ, "NCCL_DEBUG", wrong, "WARN, INFO, VERSION, or TRACE")
    elif level == "TRACE":
        wrong = "logs every call of every rank"
        yield about(environ, "NCCL_DEBUG", wrong, "WARN", command="export NCCL_DEBUG=WARN")
    elif level == "INFO" and ranks is not None and ranks > MANY_RANKS and not value(environ, "NCCL_DEBUG_FILE"):
        wrong = f"makes {ranks} ranks write to one log"
        command = "export NCCL_DEBUG_FILE=nccl.%h.%p.log"
        yield about(environ, "NCCL_DEBUG", wrong, "WARN, or NCCL_DEBUG_FILE=nccl.%h.%p.log", command=command)


@cause("ENV039", "nccl-debug-file-shared", Severity.NOTE)
def nccl_debug_file_shared(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """All ranks write to the same NCCL_DEBUG_FILE.

    ## Why it matters
    Without %h and %p in its name every process opens the same file and overwrites what the others wrote. The lines
    of the failing rank are lost.

    ## Fix
    Set NCCL_DEBUG_FILE=/path/nccl.%h.%p.log.

    ## Example

        NCCL_DEBUG_FILE=/tmp/nccl.log is one file for all ranks (NCCL_DEBUG=INFO)

        # before
        export NCCL_DEBUG_FILE=/tmp/nccl.log
        # after
        export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log

    ## Source
    NCCL documentation, NCCL_DEBUG_FILE; src/debug.cc: ncclDebugInit.
    """
    file = value(environ, "NCCL_DEBUG_FILE") or ""
    level = (value(environ, "NCCL_DEBUG") or "").strip().upper()
    if not file or level not in LEVELS or _ranks(environ, launch) == 1:
        return
    if file.startswith("~"):
        yield about(environ, "NCCL_DEBUG_FILE", "starts with ~, which NCCL does not expand", "a path without ~")
    elif "%p" not in file and not file.startswith(("/dev/", "/proc/")):
        expected = "%h and %p in the name"
        yield about(
            environ, "NCCL_DEBUG_FILE", f"is one file for all ranks ({line(environ, 'NCCL_DEBUG')})", expected,
            command="export NCCL_DEBUG_FILE=nccl.%h.%p.log",
        )  # fmt: skip


def _ranks(environ: Environ, launch: Launch | None) -> int | None:
    """How many ranks the job has, according to the launch line or the environment; None if unknown."""
    plan = next((line.plan for line in (launch.lines if launch is not None else ()) if line.plan is not None), None)
    if plan is not None and plan.nnodes is not None and plan.nproc is not None:
        return plan.nnodes[-1] * plan.nproc
    return environ.world_size
