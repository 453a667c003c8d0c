"""PROBE010: seen beside a running job, by `ddpdoctor hang`."""

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
    With cold caches torch.compile, Triton and C++ extensions keep a rank busy for minutes; where only some ranks have to
    compile (another node's cache is warm, a graph that only one rank sees), the others wait in their next collective and
    time out. The second run works, and nobody knows why.

    ## Fix
    Compile on all ranks before the first collective (a warm-up step and a barrier), share TORCHINDUCTOR_CACHE_DIR and
    TRITON_CACHE_DIR on a local disk of each node, and give the first step a longer timeout.

    ## Source
    torch/_inductor/codecache.py, torch/utils/cpp_extension.py.
    """


@compile_skew.look
def compiling(hang: Hang) -> Iterator[Finding]:
    """A rank that compiles while the others wait."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda each: each.activity is Activity.COMPILING)
