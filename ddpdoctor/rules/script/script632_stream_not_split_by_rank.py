"""SCRIPT632: a stream that every rank reads in full."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT632", "stream-not-split-by-rank", Severity.ERROR)
def stream_not_split_by_rank(script: Script) -> Iterator[Finding]:
    """An iterable dataset divides its records among the workers, but not among the ranks.

    ## Why it matters
    Every rank reads all records: an epoch takes as long as on one GPU, and all ranks compute the same gradients.

    ## Fix
    Divide by `rank * num_workers + worker_id` and `world_size * num_workers`.

    ## Example
        # before
        info = get_worker_info()
        for i in range(info.id, n, info.num_workers):
            yield read(i)

        # after
        info = get_worker_info()
        first, step = rank * info.num_workers + info.id, world_size * info.num_workers
        for i in range(first, n, step):
            yield read(i)
    """
    yield from history_findings(script, MistakeKind.STREAM_NOT_SPLIT_BY_RANK)
