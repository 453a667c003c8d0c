"""PROBE010: some ranks compile while the others wait, seen by `ddpdoctor hang`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang


@cause("PROBE010", "compile-skew", Severity.WARNING)
def compile_skew() -> None:
    """Some ranks compile kernels while the others wait for them.

    ## Why it matters
    With cold caches torch.compile, Triton, and C++ extensions keep a rank busy for minutes. If only some ranks have
    to compile (another node's cache is warm, or only one rank uses that graph), the others time out in their next
    collective with `Timed out waiting …ms`, and the second run works.

    ## Fix
    Compile on all ranks before the first collective (a warm-up step and a barrier), keep TORCHINDUCTOR_CACHE_DIR
    and TRITON_CACHE_DIR on a local disk of each node, and give the first step a longer timeout.

    ## Example

        rank 1 on node1 (pid 4711) compiles kernels; rank 0 waits for it

        # before: the first step compiles, and the timeout is too short
        dist.init_process_group("nccl", timeout=timedelta(minutes=2))
        # after
        dist.init_process_group("nccl", timeout=timedelta(minutes=30))
        train_step(example_batch)
        dist.barrier()

    ## Source
    torch/_inductor/codecache.py, torch/utils/cpp_extension.py.
    """


@compile_skew.look
def compiling(hang: Hang) -> Iterator[Finding]:
    """A rank that compiles while the others wait."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda rank: rank.activity is Activity.COMPILING)
