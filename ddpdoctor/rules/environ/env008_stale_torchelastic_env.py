"""ENV008: variables that an earlier torchrun left in the environment."""

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
    With TORCHELASTIC_USE_AGENT_STORE=True every rank, rank 0 too, waits for a store that only torchrun's agent would
    host, and after 10 minutes (NCCL) or 30 (Gloo) the job ends with `The client socket has timed out … while trying to
    connect to` its own host. The variables leak from a shell, a tmux session, or an sbatch that was started inside a
    torchrun job; frameworks that look for TORCHELASTIC_RUN_ID assume that torchrun is running.

    ## Fix
    Unset all TORCHELASTIC_* variables and start the job again.

    ## Example

        The client socket has timed out after 1800000ms while trying to connect to (node0, 29500).

        # before: in a shell inside a torchrun job
        RANK=0 WORLD_SIZE=1 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py

        # after
        unset TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
        RANK=0 WORLD_SIZE=1 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py

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
    effect = ": every rank waits for its store" if is_client else ""
    yield Finding(
        f"{left[0]}={shorten(environ.variables[left[0]])} is set, but no torchrun started this process{effect}",
        (
            *(Evidence(f"environ.variables.{name}", shorten(environ.variables[name]), "unset") for name in left),
            Evidence("environ.ancestors", above, "torchrun"),
        ),
        fix_command=f"unset {' '.join(left)}",
        severity=None if is_client else Severity.WARNING,
    )
