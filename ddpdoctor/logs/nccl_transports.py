"""Which transports NCCL says that it uses (NCCL_DEBUG=INFO), host by host, and what its own lines prove of the hardware."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.context_patterns import context_lines

__all__ = ["HostTransports", "divided_hosts", "transports_of_hosts"]


@dataclass(slots=True)
class HostTransports:
    """What the ranks of one host use. `networks` maps a network (NET/IB, NET/Socket) to its first line.

    `direct` and `staged` are the first lines of a network path with and without GPUDirect RDMA, `shared` and `peer` of a path
    inside the node, through shared memory and with peer access. `nvlink` and `rdma` are lines that prove NVLink between all
    GPUs, and RDMA devices.
    """

    networks: dict[str, LogLine] = field(default_factory=dict)
    direct: LogLine | None = None
    staged: LogLine | None = None
    shared: LogLine | None = None
    peer: LogLine | None = None
    nvlink: LogLine | None = None
    rdma: LogLine | None = None


def transports_of_hosts(log: Log) -> dict[str, HostTransports]:
    """The transports by host; lines that do not name their host are left out."""
    hosts: dict[str, HostTransports] = {}
    for line, match in context_lines(log, "channel"):
        if line.who.host is not None:
            _note(hosts.setdefault(line.who.host, HostTransports()), line, match["via"])
    for line, match in context_lines(log, "transport_offer"):
        if line.who.host in hosts:
            host = hosts[line.who.host]
            if match["rdma"]:
                host.rdma = host.rdma or line
            else:
                host.nvlink = host.nvlink or line
    return hosts


def _note(host: HostTransports, line: LogLine, via: str) -> None:
    kind, _, rest = via.partition("/")
    if kind == "SHM" or "shared memory" in via:
        host.shared = host.shared or line
    elif kind == "P2P":
        host.peer = host.peer or line
    elif kind == "NET":
        network = f"NET/{rest.partition('/')[0].strip()}"
        host.networks.setdefault(network, line)
        if network == "NET/Socket":
            return
        if "/GDRDMA" in rest:
            host.direct = host.direct or line
        else:
            host.staged = host.staged or line


def divided_hosts(log: Log) -> dict[str, tuple[LogLine, LogLine]]:
    """Hosts of which NCCL counts each rank as a node of its own: `localRanks 1` of two ranks of one communicator.

    Nodes that share a name are told apart: their ranks would have the same device or the same bus id.
    """
    alone = {
        (line.who.host, m["comm"], m["rank"]): line
        for line, m in context_lines(log, "ranks_of_node")
        if m["nodes"] != "1"
    }
    groups: dict[tuple[str, str], list[tuple[str, str, LogLine | None]]] = {}
    for line, match in context_lines(log, "init_start"):
        if line.who.host is not None:
            own = alone.get((line.who.host, match["comm"], match["rank"]))
            groups.setdefault((line.who.host, match["group"]), []).append((match["device"], match["bus"], own))
    found: dict[str, tuple[LogLine, LogLine]] = {}
    for (host, _), ranks in groups.items():
        lines = [line for _, _, line in ranks if line is not None]
        distinct = all(len({rank[i] for rank in ranks}) == len(ranks) for i in (0, 1))
        if len(lines) == len(ranks) > 1 and distinct:
            found.setdefault(host, (lines[0], lines[1]))
    return found
