"""ENV052 to ENV054: switches of torch's NCCL backend that make jobs hang, run slowly, or end early."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, as_integer
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, value

__all__ = ["torch_async_error_handling_off", "torch_debug_mode_on", "torch_heartbeat_extreme"]

TRUE = ("1", "y", "yes", "t", "true")
FALSE = ("0", "n", "no", "f", "false")
LEAST_HEARTBEAT_SECONDS = 120
SLOW = (
    ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "makes every wait block the CPU"),
    ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG", "writes the state of every collective to the store"),
    ("TORCH_NCCL_NAN_CHECK", None, "runs a check before every collective and ends the job at a NaN"),
)


def _setting(environ: Environ, name: str, older: str | None) -> tuple[str, str]:
    """The name that is in effect (torch reads the newer one first), and its value in lower case."""
    used = older if older is not None and not value(environ, name) and value(environ, older) else name
    return used, (value(environ, used) or "").strip().lower()


@cause("ENV052", "torch-async-error-handling-off", Severity.ERROR)
def torch_async_error_handling_off(environ: Environ) -> Iterator[Finding]:
    """TORCH_NCCL_ASYNC_ERROR_HANDLING=0 makes ranks wait forever for a peer that died.

    ## Why it matters
    With 0 the watchdog ignores timeouts and errors. When one rank dies, the others wait for it and keep their GPUs
    until the job is killed.

    ## Fix
    Unset TORCH_NCCL_ASYNC_ERROR_HANDLING.

    ## Example

        TORCH_NCCL_ASYNC_ERROR_HANDLING=0 makes ranks wait forever when a peer dies

        # before
        export TORCH_NCCL_ASYNC_ERROR_HANDLING=0
        # after
        unset TORCH_NCCL_ASYNC_ERROR_HANDLING

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: ErrorHandlingMode.
    """
    name, text = _setting(environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if as_integer(text) == 0 and environ.world_size != 1:
        yield about(environ, name, "makes ranks wait forever when a peer dies", "unset, or 3")


@cause("ENV053", "torch-debug-mode-on", Severity.WARNING)
def torch_debug_mode_on(environ: Environ) -> Iterator[Finding]:
    """A debug switch of torch.distributed is on.

    ## Why it matters
    Blocking waits, desync reports, NaN checks, and TORCH_DISTRIBUTED_DEBUG=DETAIL, which first checks every
    collective over Gloo, slow each step down. They are usually left over from debugging (a note with
    NCCL_DEBUG=INFO).

    ## Fix
    Unset the variables that the finding names, once the fault is found.

    ## Example

        TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective over Gloo first

        # before
        export TORCH_DISTRIBUTED_DEBUG=DETAIL
        # after
        unset TORCH_DISTRIBUTED_DEBUG

    ## Source
    torch documentation, ProcessGroupNCCL environment variables and torch.distributed debug levels.
    """
    is_debugged = (value(environ, "NCCL_DEBUG") or "").upper() in ("INFO", "TRACE")
    severity = Severity.NOTE if is_debugged else None
    for new, old, wrong in SLOW:
        name, text = _setting(environ, new, old)
        if text in TRUE:
            yield about(environ, name, wrong, "unset, except while debugging", severity=severity)
    if (value(environ, "TORCH_DISTRIBUTED_DEBUG") or "").upper() == "DETAIL":
        wrong = "checks every collective over Gloo first"
        yield about(environ, "TORCH_DISTRIBUTED_DEBUG", wrong, "unset, OFF, or INFO", severity=severity)


@cause("ENV054", "torch-heartbeat-extreme", Severity.WARNING)
def torch_heartbeat_extreme(environ: Environ) -> Iterator[Finding]:
    """The monitor of torch's NCCL watchdog is off, or has a very short timeout.

    ## Why it matters
    A short timeout ends healthy jobs during a long compilation or checkpoint. Without the monitor, a job with a
    stuck watchdog never ends.

    ## Fix
    Unset TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC and TORCH_NCCL_ENABLE_MONITORING: the monitor is then on, with 480 seconds.

    ## Example

        TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=10 ends jobs that compile or save for longer

        # before
        export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=10
        # after
        unset TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, TORCH_NCCL_ENABLE_MONITORING.
    """
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    seconds = as_integer(value(environ, name))
    if seconds is not None and seconds < LEAST_HEARTBEAT_SECONDS:
        wrong = "ends jobs that compile or save for longer"
        yield about(environ, name, wrong, f"at least {LEAST_HEARTBEAT_SECONDS}, or unset (480)")
    name, text = _setting(environ, "TORCH_NCCL_ENABLE_MONITORING", None)
    if text in FALSE:
        yield about(environ, name, "lets a job with a stuck watchdog hang forever", "unset")
