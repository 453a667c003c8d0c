"""ENV001: a rank that the job does not have."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule


@rule("ENV001", "rank-out-of-range", Severity.ERROR, signatures=(r"rank < size\. \d+ vs \d+",))
def check(environ: Environ) -> Iterator[Finding]:
    """RANK is not one of 0 to WORLD_SIZE-1.

    ## Why it matters
    Ranks count from 0. Gloo stops only this process, with `rank < size. 2 vs 2`; a rank that is never filled keeps all
    the others in init_process_group until `Timed out after … seconds waiting for clients`, so the healthy nodes look
    stuck.

    ## Fix
    Number the ranks 0 to WORLD_SIZE-1, or set WORLD_SIZE to the real number of processes; torchrun does both.

    ## Source
    torch/distributed/rendezvous.py: `_env_rendezvous_handler` takes RANK and WORLD_SIZE without comparing them.
    """
    rank, world = environ.integer("RANK"), environ.integer("WORLD_SIZE")
    if rank is None or world is None or 0 <= rank < world:
        return
    if rank == -1 and world == 1:  # the usual way of saying "not distributed"
        return
    allowed = f"0 to {world - 1}" if world > 0 else "a WORLD_SIZE of at least 1"
    yield Finding(
        f"RANK={rank} with WORLD_SIZE={world}: expected {allowed}",
        (
            Evidence("environ.variables.RANK", str(rank), allowed),
            Evidence("environ.variables.WORLD_SIZE", str(world)),
        ),
        where=Where(rank=rank) if rank >= 0 else Where(),
        ranks=(rank,) if rank >= 0 else (),
    )
