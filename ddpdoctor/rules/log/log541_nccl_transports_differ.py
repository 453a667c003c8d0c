"""LOG541: the nodes of a job use different transports of NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

__all__: list[str] = []


@cause("LOG541", "nccl-transports-differ", Severity.WARNING)
def nccl_transports_differ(log: Log) -> Iterator[Finding]:
    """Some nodes use a slower NCCL transport than the others of the same job.

    ## Why it matters
    Each collective waits for its slowest link: one node with `via NET/Socket` or without `/GDRDMA` slows all nodes. The reason is
    on that node: an adapter that is down, no /dev/infiniband in the container, no nvidia_peermem or dma-buf, another plugin, or
    a variable set only there.

    ## Fix
    Compare the lines `NET/IB : Using …`, `GPU Direct RDMA Enabled` and `… set by environment` of a named node with those of
    another one (NCCL_DEBUG=INFO), and repair the difference.

    ## Example

        node2:71:190 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [send] via NET/Socket/0

    On the named nodes:

        # before: without the RDMA devices
        docker run --gpus all IMAGE torchrun train.py
        # after
        docker run --gpus all --device=/dev/infiniband IMAGE torchrun train.py

    ## Source
    NCCL src/transport/net.cc (sendSetup, recvSetup: `Channel … via NET/…/GDRDMA`).
    """
    from ddpdoctor.logs.nccl_transports import transports_of_hosts

    hosts = transports_of_hosts(log)
    sockets = {name: h.networks["NET/Socket"] for name, h in hosts.items() if set(h.networks) == {"NET/Socket"}}
    others = {name: next(iter(h.networks.values())) for name, h in hosts.items() if set(h.networks) - {"NET/Socket"}}
    if sockets and others:
        network = next(iter(set(hosts[next(iter(others))].networks) - {"NET/Socket"}))
        yield _finding(log, sockets, others, f"use NET/Socket, the others {network}")
        return
    staged = {name: h.staged for name, h in hosts.items() if h.staged is not None and h.direct is None}
    direct = {name: h.direct for name, h in hosts.items() if h.direct is not None and h.staged is None}
    if staged and direct:
        yield _finding(log, staged, direct, "send without GPUDirect RDMA, the others with it")
    shared = {name: h.shared for name, h in hosts.items() if h.shared is not None and h.peer is None}
    peers = {name: h.peer for name, h in hosts.items() if h.peer is not None and h.shared is None}
    if shared and peers:
        yield _finding(log, shared, peers, "use shared memory (SHM) between GPUs, the others peer access (P2P)")


def _finding(log: Log, slow: dict[str, LogLine], fast: dict[str, LogLine], words: str) -> Finding:
    names = sorted(slow)
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    first, other = slow[names[0]], fast[min(fast)]
    return Finding(
        f"{', '.join(names[:2])}{more}: {words.replace('use ', 'uses ', 1) if len(names) == 1 else words}",
        tuple(Evidence(log.place(line.source, line.number), line.text.strip()) for line in (first, other)),
        where=Where(host=names[0] if len(names) == 1 else None, file=log.sources[first.source].name, line=first.number),
        quote=first.text.strip(),
        certainty=Certainty.LIKELY,
    )
