"""ENV052 to ENV054: switches of torch's NCCL backend that make jobs hang, crawl or die early."""

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
    ("TORCH_NCCL_NAN_CHECK", None, "adds a kernel before every collective, and ends the job at a NaN"),
)


def _setting(environ: Environ, name: str, older: str | None) -> tuple[str, str]:
    """The name that counts, as torch takes it (the newer one before the older), and its value in lower case."""
    used = older if older is not None and not value(environ, name) and value(environ, older) else name
    return used, (value(environ, used) or "").strip().lower()


@cause("ENV052", "torch-async-error-handling-off", Severity.ERROR)
def torch_async_error_handling_off(environ: Environ) -> Iterator[Finding]:
    """TORCH_NCCL_ASYNC_ERROR_HANDLING=0 keeps ranks waiting for a peer that died.

    ## Why it matters
    With 0 the watchdog does nothing at a timeout or an error: when one rank dies, the others wait for it and hold their
    GPUs until somebody ends the job.

    ## Fix
    Unset TORCH_NCCL_ASYNC_ERROR_HANDLING.

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: ErrorHandlingMode.
    """
    name, text = _setting(environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if as_integer(text) == 0 and environ.world_size != 1:
        wrong = "keeps the ranks waiting for ever when one of them dies"
        yield about(environ, name, wrong, "it to be unset, or 3")


@cause("ENV053", "torch-debug-mode-on", Severity.WARNING)
def torch_debug_mode_on(environ: Environ) -> Iterator[Finding]:
    """A debug switch of torch.distributed is on.

    ## Why it matters
    Blocking waits, desync reports, NaN checks and TORCH_DISTRIBUTED_DEBUG=DETAIL, which checks every collective over Gloo
    first, slow each step down. Usually they are left over from a search for a fault.

    ## Fix
    Unset them once the fault is found.

    ## Source
    torch documentation, ProcessGroupNCCL environment variables and torch.distributed debug levels.
    """
    for new, old, wrong in SLOW:
        name, text = _setting(environ, new, old)
        if text in TRUE:
            yield about(environ, name, wrong, "it to be unset outside of a search for a fault")
    if (value(environ, "TORCH_DISTRIBUTED_DEBUG") or "").upper() == "DETAIL":
        wrong = "checks every collective of every rank over Gloo first"
        yield about(environ, "TORCH_DISTRIBUTED_DEBUG", wrong, "it to be unset, OFF or INFO")


@cause("ENV054", "torch-heartbeat-extreme", Severity.WARNING)
def torch_heartbeat_extreme(environ: Environ) -> Iterator[Finding]:
    """The monitor of NCCL's watchdog is off, or has a very short timeout.

    ## Why it matters
    A short timeout ends healthy jobs during a long compilation or checkpoint. Without the monitor a job whose watchdog is
    stuck never ends.

    ## Fix
    Unset both: the monitor is then on, with 480 seconds.

    ## Source
    torch c10d/ProcessGroupNCCL.hpp: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, TORCH_NCCL_ENABLE_MONITORING.
    """
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    seconds = as_integer(value(environ, name))
    if seconds is not None and seconds < LEAST_HEARTBEAT_SECONDS:
        wrong = "ends jobs that compile or save for longer"
        yield about(environ, name, wrong, f"at least {LEAST_HEARTBEAT_SECONDS}, or to be unset (480)")
    name, text = _setting(environ, "TORCH_NCCL_ENABLE_MONITORING", None)
    if text in FALSE:
        yield about(environ, name, "lets a job with a stuck watchdog hang for ever", "it to be unset")
