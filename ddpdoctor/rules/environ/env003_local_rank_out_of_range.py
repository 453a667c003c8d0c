"""ENV003: a local rank that the node does not have."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule


@rule("ENV003", "local-rank-out-of-range", Severity.ERROR)
def check(environ: Environ) -> Iterator[Finding]:
    """LOCAL_RANK is not one of 0 to LOCAL_WORLD_SIZE-1.

    ## Why it matters
    Scripts take the GPU with the number LOCAL_RANK. One that is too large gives `invalid device ordinal` although there
    are enough GPUs for the processes that were started.

    ## Fix
    Number LOCAL_RANK from 0 on every node, or let torchrun set LOCAL_RANK and LOCAL_WORLD_SIZE.
    """
    size_name = environ.local_size_name
    local_rank, size = environ.integer("LOCAL_RANK"), environ.integer(size_name)
    if local_rank is None or size is None or 0 <= local_rank < size:
        return
    if local_rank == -1 and size == 1:  # the usual way of saying "not distributed"
        return
    allowed = f"0 to {size - 1}" if size > 0 else f"a {size_name} of at least 1"
    yield Finding(
        f"LOCAL_RANK={local_rank} with {size_name}={size}: expected {allowed}",
        (
            Evidence("environ.variables.LOCAL_RANK", str(local_rank), allowed),
            Evidence(f"environ.variables.{size_name}", str(size)),
        ),
        where=Where(rank=environ.rank, local_rank=local_rank, node_rank=environ.node_rank),
    )
