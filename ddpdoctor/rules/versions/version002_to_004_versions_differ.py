"""VERSION002 to VERSION004: nodes that run different versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.nodes import Nodes, split
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import differs

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["driver_version_differs", "nccl_version_differs", "torch_version_differs"]


@cause(
    "VERSION002",
    "nccl-version-differs",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    signatures=(r"Mismatched NCCL version detected", r"with family 0 is neither AF_INET"),
)
def nccl_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes would load different NCCL versions.

    ## Why it matters
    NCCL ends with "Mismatched NCCL version detected"; older releases complain about an address "with family 0". Each node
    alone works.

    ## Fix
    Use one environment or one container image on all nodes; look for a libnccl.so in LD_LIBRARY_PATH or LD_PRELOAD.
    """
    found = split(nodes.nodes, lambda node: node.traits.get("versions.nccl"))
    if found is not None:
        yield differs(found, "the NCCL version", "versions.nccl")


@cause("VERSION003", "torch-version-differs", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def torch_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run different versions of torch, or builds for different CUDA versions.

    ## Why it matters
    Store protocol, defaults and collectives change between releases: the job hangs or fails in places that say nothing of
    versions.

    ## Fix
    Use one environment on all nodes.
    """
    for path, what in (("versions.torch", "the torch version"), ("versions.build", "the build of torch")):
        found = split(nodes.nodes, lambda node, path=path: node.traits.get(path))  # type: ignore[misc]
        if found is not None:
            yield differs(found, what, path)
            return


@cause("VERSION004", "driver-version-differs", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def driver_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run different versions of the NVIDIA driver.

    ## Why it matters
    One node supports an older CUDA, or lacks a fix that the others have; only that node fails, and only sometimes.

    ## Fix
    Bring all nodes to one driver.
    """
    found = split(nodes.nodes, lambda node: node.traits.get("gpu.driver"))
    if found is not None:
        yield differs(found, "the driver version", "gpu.driver")


TRUNCATED = (r"Message truncated : received \d+ bytes",)


@nccl_version_differs.look
def versions_differ(log: Log) -> Iterator[Finding]:
    """Ranks exchange messages of different lengths, and tell different versions of NCCL."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log502_nccl_error_without_reason import nccl_versions
    from ddpdoctor.rules.log.signatures import finding_of, signed

    lines = matching_lines(log, TRUNCATED)
    if lines and (told := nccl_versions(log)):
        yield finding_of(log, lines, f"The ranks run different NCCL versions ({told})", blames_speaker=False)
    yield from signed(nccl_version_differs, log)
