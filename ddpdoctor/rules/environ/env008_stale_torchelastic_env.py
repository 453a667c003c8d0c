"""ENV008: what a torchrun that is gone has left behind."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause

LEFT_BY_AGENT = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
)


@cause("ENV008", "stale-torchelastic-env", Severity.ERROR, scope=CauseScope.PROCESS)
def stale_torchelastic_env(environ: Environ) -> Iterator[Finding]:
    """TORCHELASTIC_* variables are set although no torchrun started this process.

    ## Why it matters
    With TORCHELASTIC_USE_AGENT_STORE=True every rank, rank 0 too, is a client of a store that only torchrun's agent would
    host: the job ends, after half an hour, with `The client socket has timed out … while trying to connect to` its own
    host. Frameworks that look for TORCHELASTIC_RUN_ID believe in a torchrun that is not there. The variables leak from a
    shell, a tmux or an sbatch that was started inside a torchrun job.

    ## Fix
    Unset all TORCHELASTIC_* variables and start the job again.

    ## Source
    torch/distributed/rendezvous.py: `_create_c10d_store` reads TORCHELASTIC_USE_AGENT_STORE.
    """
    left = [name for name in LEFT_BY_AGENT if environ.has(name)]
    if not any(environ.has(name) for name in LEFT_BY_AGENT[:2]):
        return
    if environ.need(environ.has_elastic_agent, "has_elastic_agent"):
        return
    above = shorten(", ".join(environ.ancestors or ()), 200) or "unknown"
    is_client = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    effect = "every rank will wait for a store that no agent hosts" if is_client else "frameworks will believe in it"
    yield Finding(
        f"{left[0]}={shorten(environ.variables[left[0]])} is set, but no torchrun is above this process: {effect}",
        (
            *(Evidence(f"environ.variables.{name}", shorten(environ.variables[name]), "unset") for name in left),
            Evidence("environ.ancestors", above, "torchrun"),
        ),
        fix_command=f"unset {' '.join(left)}",
        severity=None if is_client else Severity.WARNING,
    )
