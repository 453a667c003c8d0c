"""What NCCL's own hints mean: the causes that they are about, and their advice as a fix."""

from __future__ import annotations

from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.nccl_hints import hint_of
from ddpdoctor.rules.log.signatures import codes_of

__all__ = ["advice", "hinted_causes"]

ABOUT = (
    ("ACS is enabled", ("gpudirect-rdma-broken",)),
    ("cross-rail", ("rail-crossing",)),
    ("GID index", ("roce-gid-not-routable",)),
    ("topology file", ("nccl-topo-file-invalid",)),
    ("--net host", ("pci-topology-unreadable",)),
    ("IMEX", ("imex-not-ready",)),
    ("NCCL_IB_TIMEOUT", ("ib-transport-retry-exceeded",)),
)
"""Words of a hint, and the names of the causes that it is about. Source: src/misc/ibvwrap.cc, src/transport/net_ib/common.h and
src/graph/xml.h of 2.30.7, the strings of 2.31.2 and 2.32.3."""


def advice(hints: list[LogLine]) -> str:
    """The hints as one text; "" without any."""
    return " ".join(f"{words.rstrip('.')}." for hint in hints if not (words := hint_of(hint)).startswith("See "))


def hinted_causes(hints: list[LogLine]) -> tuple[str, ...]:
    """The codes of the causes that the hints are about, in their order."""
    names = [name for hint in hints for words, known in ABOUT if words in hint.text for name in known]
    return codes_of(*dict.fromkeys(names))
