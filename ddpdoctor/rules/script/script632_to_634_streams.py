"""SCRIPT632 to SCRIPT634: data that the ranks or workers do not share as intended."""

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


@cause("SCRIPT633", "stream-not-split-by-worker", Severity.ERROR)
def stream_not_split_by_worker(script: Script) -> Iterator[Finding]:
    """An iterable dataset divides its records among the ranks, but not among the workers.

    ## Why it matters
    Each worker process has a copy of the dataset and yields the same records: every sample comes num_workers times.

    ## Fix
    Use `torch.utils.data.get_worker_info()` in `__iter__`.

    ## Example
        # before
        for path in self.files[rank::world_size]:
            yield from read(path)

        # after
        info = get_worker_info()
        for path in self.files[rank::world_size][info.id :: info.num_workers]:
            yield from read(path)

    ## Source
    PyTorch documentation of IterableDataset: each worker gets a replica of the dataset.
    """
    yield from history_findings(script, MistakeKind.STREAM_NOT_SPLIT_BY_WORKER)


@cause("SCRIPT634", "loader-cycled", Severity.WARNING)
def loader_cycled(script: Script) -> Iterator[Finding]:
    """itertools.cycle repeats a loader with a DistributedSampler.

    ## Why it matters
    cycle keeps all batches of the first pass in memory and replays them: set_epoch has no effect, each rank sees the same samples
    in each epoch, and the memory of the host grows.

    ## Fix
    Iterate over the loader again in each epoch, after `sampler.set_epoch(epoch)`.

    ## Example
        # before
        batches = itertools.cycle(loader)

        # after
        def forever(loader, sampler):
            for epoch in itertools.count():
                sampler.set_epoch(epoch)
                yield from loader

    ## Source
    Python documentation of itertools.cycle: saves a copy of each element.
    """
    yield from history_findings(script, MistakeKind.LOADER_CYCLED)
