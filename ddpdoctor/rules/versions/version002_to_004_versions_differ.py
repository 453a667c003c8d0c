"""VERSION002 to VERSION004: the nodes run different versions."""

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
    signatures=(
        r"Mismatched NCCL version detected",
        r"Mismatched NCCL git versions detected",
        r"NCCL version mismatch with remote peer",
        r"with family 0 is neither AF_INET",
    ),
)
def nccl_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes would load different NCCL versions.

    ## Why it matters
    NCCL fails with `Mismatched NCCL version detected`; older releases print an error about an address `with family
    0`. Each node works alone.

    ## Fix
    Use one environment or one container image on all nodes; look for a libnccl.so in LD_LIBRARY_PATH or LD_PRELOAD.

    ## Example

        NCCL WARN Mismatched NCCL version detected : got 22005 expected 21803

        # before, on node1
        export LD_LIBRARY_PATH=/opt/nccl-2.18.3/lib
        # after, on node1
        unset LD_LIBRARY_PATH
    """
    groups = split(nodes.nodes, lambda node: node.traits.get("versions.nccl"))
    if groups is not None:
        yield differs(groups, "the NCCL version", "versions.nccl")


@cause("VERSION003", "torch-version-differs", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def torch_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run different versions of torch, or builds for different CUDA versions.

    ## Why it matters
    The store's protocol, defaults, and collectives change between releases. The job hangs or fails in places that
    do not mention versions.

    ## Fix
    Use one environment on all nodes.

    ## Example

        the torch version differs between nodes (node0: 2.5.1; node1: 2.4.0)

        # before, on node1
        pip show torch          # Version: 2.4.0
        # after, on node1
        pip install torch==2.5.1
    """
    for path, what in (("versions.torch", "the torch version"), ("versions.build", "the torch build")):
        groups = split(nodes.nodes, lambda node, path=path: node.traits.get(path))  # type: ignore[misc]
        if groups is not None:
            yield differs(groups, what, path)
            return


@cause("VERSION004", "driver-version-differs", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def driver_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run different versions of the NVIDIA driver.

    ## Why it matters
    One node supports an older CUDA, or lacks a fix that the others have. Only that node fails, and only sometimes.

    ## Fix
    Install the same driver on all nodes.

    ## Example

        the driver version differs between nodes (node0: 550.54.15; node1: 535.104.05)

        # before, on node1
        nvidia-smi --query-gpu=driver_version --format=csv,noheader    # 535.104.05
        # after, on every node
        nvidia-smi --query-gpu=driver_version --format=csv,noheader    # 550.54.15
    """
    groups = split(nodes.nodes, lambda node: node.traits.get("gpu.driver"))
    if groups is not None:
        yield differs(groups, "the driver version", "gpu.driver")


TRUNCATED = (r"Message truncated : received \d+ bytes",)


@nccl_version_differs.look
def versions_differ(log: Log) -> Iterator[Finding]:
    """Ranks exchange messages of different lengths, and print different versions of NCCL."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log502_nccl_error_without_reason import nccl_versions
    from ddpdoctor.rules.log.signatures import finding_of, signed

    lines = matching_lines(log, TRUNCATED)
    if lines and (versions := nccl_versions(log)):
        yield finding_of(log, lines, f"the ranks run different NCCL versions ({versions})", blames_speaker=False)
    yield from signed(nccl_version_differs, log)
