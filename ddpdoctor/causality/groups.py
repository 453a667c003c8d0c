"""Groups findings about the same object: a GPU, the link between two hosts, a node that differs from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.findings import Finding

__all__ = ["grouped"]

_COMPARED = "nodes."
"""The prefix of evidence paths of findings from comparing nodes."""


def grouped(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings in their order; those that share an object with another one get its name as group.

    Findings on one node are not grouped in general: only those from a comparison of nodes.
    """
    found = tuple(findings)
    shared = Counter((each.job, thing) for each in found if (thing := _thing(each)) is not None)
    return tuple(
        replace(each, group=thing)
        if each.group is None and (thing := _thing(each)) is not None and shared[each.job, thing] > 1
        else each
        for each in found
    )


def _thing(finding: Finding) -> str | None:
    """`GPU 3`, `GPU 3 on gpu-07`, `link gpu-07 - gpu-08`, `node 1 (gpu-08)`; None for any other finding."""
    where = finding.where
    if where.gpu is not None:
        return f"GPU {where.gpu}" + (f" on {where.host}" if where.host is not None else "")
    if where.host is not None and where.peer is not None:
        return "link " + " - ".join(sorted((where.host, where.peer)))
    is_compared = any(each.path.startswith(_COMPARED) for each in finding.evidence)
    if not is_compared or where.host is None:
        return None
    return where.host if where.node_rank is None else f"node {where.node_rank} ({where.host})"
