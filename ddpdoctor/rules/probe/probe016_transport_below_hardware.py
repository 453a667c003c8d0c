"""PROBE016: GPUs that exchange data through host memory although something faster connects them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.probe import Probe, RankReport
from ddpdoctor.findings import Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

DIRECT = ("NVLink", "PCIe peer-to-peer")
"""The names that `facts.ways` gives to the paths that NCCL uses by default if they work."""
SLOW = ("SHM", "NET/Socket")
INSIDE = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_HOSTID")
BETWEEN = ("NCCL_IB_DISABLE", "NCCL_NET")
"""The variables that forbid NCCL a path inside a node, and between nodes."""


@cause("PROBE016", "transport-below-hardware", Severity.WARNING)
def transport_below_hardware(probe: Probe) -> Iterator[Finding]:
    """NCCL uses host memory or plain sockets although NVLink, peer access, or RDMA is available.

    ## Why it matters
    The job runs at a tenth of its speed or less, and only NCCL_DEBUG=INFO shows it: `via SHM/direct/direct` between
    GPUs with NVLink, `via NET/Socket/0` between nodes with InfiniBand. The usual reasons are a variable left over
    from debugging, containers that do not share /dev/shm or the GPUs of the node, and a plugin that is not
    installed.

    ## Fix
    Remove NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_IB_DISABLE, and NCCL_NET from the job's environment; run all ranks
    of a node in one container, or with --ipc=host; give the container /dev/infiniband and the provider's network
    plugin.

    ## Example

        NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct

        # before
        NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 8 train.py
        # after
        env -u NCCL_P2P_DISABLE torchrun --nproc-per-node 8 train.py

    ## Source
    NCCL src/transport (Channel … via …), src/graph/paths.cc (ncclTopoCheckP2p).
    """
    if not any(report.transports for report in probe.ranks):
        not_here("NCCL was not used")
    ranks = {str(report.rank): report for report in probe.ranks}
    groups: dict[tuple[str, str, str], list[tuple[RankReport, RankReport]]] = {}
    for one in probe.ranks:
        for peer, transport in one.transports.items():
            other = ranks.get(peer)
            offer = _offer(one, other, transport) if other is not None else ""
            if other is not None and offer:
                node = one.host if one.host == other.host else ""
                groups.setdefault((node, transport, offer), []).append((one, other))
    for (node, transport, offer), pairs in groups.items():
        yield _finding(node, transport, offer, pairs)


def _offer(one: RankReport, other: RankReport, transport: str) -> str:
    """What connects two ranks better than this transport, "" if nothing does."""
    if transport not in SLOW:
        return ""
    if one.host != other.host:
        return one.offers.get("network", "") if other.offers.get("network") else ""
    path = one.offers.get(other.gpu_uuid or "", "")
    return path if path in DIRECT else ""


def _finding(node: str, transport: str, offer: str, pairs: list[tuple[RankReport, RankReport]]) -> Finding:
    """One finding for all pairs of a node, one for all pairs between the nodes."""
    one, other = pairs[0]
    where = f"on {node}" if node else f"({one.host} and {other.host})"
    more = f" and {len(pairs) - 1} more pair{'s' * (len(pairs) > 2)}" if len(pairs) > 1 else ""
    forbids = {name: value for name, value in one.settings.items() if name in (INSIDE if node else BETWEEN)}
    why = f"; {', '.join(f'{name}={value}' for name, value in forbids.items())} is set" if forbids else ""
    return Finding(
        f"rank {one.rank} to rank {other.rank} {where}{more}: NCCL uses {transport}, not {offer}{why}",
        (Evidence("probe.ranks.transports", transport, offer),),
        fix_command=f"unset {' '.join(forbids)}" if forbids else None,
        where=Where(host=node or None),
        ranks=tuple(sorted({sender.rank for sender, _ in pairs})),
    )


@transport_below_hardware.look
def transport_below_hardware_in_log(log: Log) -> Iterator[Finding]:
    """What NCCL's INFO lines prove: its path, and on the same host NVLink between all GPUs, or RDMA devices."""
    from ddpdoctor.logs.nccl_transports import divided_hosts, transports_of_hosts

    divided = divided_hosts(log)
    if divided:
        yield _from_log(
            log, divided, "counts each rank as a node of its own (localRanks 1), and uses the network between them"
        )
    hosts = transports_of_hosts(log)
    inside = {name: (h.shared, h.nvlink) for name, h in hosts.items() if h.shared and h.nvlink}
    between = {
        name: (h.networks["NET/Socket"], h.rdma) for name, h in hosts.items() if "NET/Socket" in h.networks and h.rdma
    }
    if inside:
        yield _from_log(log, inside, "uses shared memory (SHM), not NVLink")
    if between:
        yield _from_log(log, between, "uses NET/Socket, not its RDMA devices")


def _from_log(log: Log, hosts: Mapping[str, tuple[LogLine, LogLine]], words: str) -> Finding:
    """One finding for all hosts of which the log shows the same; the lines of the first are its evidence."""
    names = sorted(hosts)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    used, offered = hosts[names[0]]
    return Finding(
        f"{names[0]}{more}: NCCL {words}",
        tuple(Evidence(log.place(line.source, line.number), line.text.strip()) for line in (used, offered)),
        where=Where(host=names[0] if len(names) == 1 else None, file=log.sources[used.source].name, line=used.number),
        quote=used.text.strip(),
        certainty=Certainty.LIKELY,
    )
