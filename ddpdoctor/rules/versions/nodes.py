"""VERSION002 to VERSION004: nodes that run different versions."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Nodes, split
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.node_findings import differs

__all__ = ["driver", "nccl", "torch"]


@rule(
    "VERSION002",
    "nccl-version-differs",
    Severity.ERROR,
    signatures=(r"Mismatched NCCL version detected", r"with family 0 is neither AF_INET"),
)
def nccl(nodes: Nodes) -> Iterator[Finding]:
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


@rule("VERSION003", "torch-version-differs", Severity.WARNING)
def torch(nodes: Nodes) -> Iterator[Finding]:
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


@rule("VERSION004", "driver-version-differs", Severity.WARNING)
def driver(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run different versions of the NVIDIA driver.

    ## Why it matters
    One node supports an older CUDA, or lacks a fix that the others have; only that node fails, and only sometimes.

    ## Fix
    Bring all nodes to one driver.
    """
    found = split(nodes.nodes, lambda node: node.traits.get("gpu.driver"))
    if found is not None:
        yield differs(found, "the driver version", "gpu.driver")
