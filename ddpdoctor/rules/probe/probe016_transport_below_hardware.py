"""PROBE016: GPUs that exchange data through host memory although something faster connects them."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.probe import Probe, RankReport
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

DIRECT = ("NVLink", "PCIe peer-to-peer")
"""What `facts.ways` calls the ways that NCCL takes by itself wherever they work."""
SLOW = ("SHM", "NET/Socket")
INSIDE = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_HOSTID")
BETWEEN = ("NCCL_IB_DISABLE", "NCCL_NET")
"""The variables that keep NCCL from a way inside a node, and between nodes."""


@cause("PROBE016", "transport-below-hardware", Severity.WARNING)
def transport_below_hardware(probe: Probe) -> Iterator[Finding]:
    """NCCL passes data through host memory or plain sockets where NVLink, peer access or RDMA is there.

    ## Why it matters
    The job runs at a tenth of its speed or less, and says so only with NCCL_DEBUG=INFO: `via SHM/direct/direct` between GPUs that
    NVLink connects, `via NET/Socket/0` between nodes with InfiniBand. A variable that was once set to get round another fault,
    containers that do not share /dev/shm or the GPUs of the node, or a plugin that is not installed are the usual reasons.

    ## Fix
    Take NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_IB_DISABLE and NCCL_NET out of the job's environment; give all ranks of a node one
    container, or --ipc=host; give it /dev/infiniband and the provider's network plugin.

    ## Source
    NCCL src/transport (Channel … via …), src/graph/paths.cc (ncclTopoCheckP2p).
    """
    if not any(each.transports for each in probe.ranks):
        not_here("NCCL was not used")
    ranks = {str(each.rank): each for each in probe.ranks}
    groups: dict[tuple[str, str, str], list[tuple[RankReport, RankReport]]] = {}
    for one in probe.ranks:
        for peer, transport in one.transports.items():
            other = ranks.get(peer)
            offer = _offer(one, other, transport) if other is not None else ""
            if other is not None and offer:
                node = one.host if one.host == other.host else ""
                groups.setdefault((node, transport, offer), []).append((one, other))
    for (node, transport, offer), found in groups.items():
        yield _finding(node, transport, offer, found)


def _offer(one: RankReport, other: RankReport, transport: str) -> str:
    """What connects two ranks better than this transport, "" where nothing does."""
    if transport not in SLOW:
        return ""
    if one.host != other.host:
        return one.offers.get("network", "") if other.offers.get("network") else ""
    way = one.offers.get(other.gpu_uuid or "", "")
    return way if way in DIRECT else ""


def _finding(node: str, transport: str, offer: str, found: list[tuple[RankReport, RankReport]]) -> Finding:
    """One for all pairs of a node, one for all between the nodes."""
    one, other = found[0]
    where = f"on {node}" if node else f"({one.host} and {other.host})"
    more = f", and {len(found) - 1} more ways," if len(found) > 1 else ""
    forbids = {name: value for name, value in one.settings.items() if name in (INSIDE if node else BETWEEN)}
    why = f"; {', '.join(f'{name}={value}' for name, value in forbids.items())} is set" if forbids else ""
    return Finding(
        f"NCCL goes by {transport} from rank {one.rank} to rank {other.rank} {where}{more} expected {offer}{why}",
        (Evidence("probe.ranks.transports", transport, offer),),
        fix_command=f"unset {' '.join(forbids)}" if forbids else None,
        where=Where(host=node or None),
        ranks=tuple(sorted({each.rank for each, _ in found})),
    )
