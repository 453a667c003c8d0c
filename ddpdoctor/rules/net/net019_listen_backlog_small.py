"""NET019: net.core.somaxconn compared with the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.net import Net
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

__all__ = ["listen_backlog_small"]


@cause("NET019", "listen-backlog-small", Severity.ERROR, signatures=(r"somaxconn is \d+",))
def listen_backlog_small(environ: Environ, net: Net) -> Iterator[Finding]:
    """More ranks connect to the store at once than its connection queue can hold.

    ## Why it matters
    The kernel limits the queue of the store's socket to net.core.somaxconn. Only large jobs fail, and only sometimes, while
    they connect: `recvValue failed … Connection reset by peer`.

    ## Fix
    Run `sysctl -w net.core.somaxconn=16384` as root on rank 0's node.

    ## Example
    In the log:

        recvValue failed on SocketImpl(...): Connection reset by peer

    On rank 0's node, as root:

        # before
        sysctl net.core.somaxconn
        net.core.somaxconn = 128
        # after
        sysctl -w net.core.somaxconn=16384
    """
    world_size = environ.get("WORLD_SIZE") or ""
    if net.is_master is False or not world_size.isdigit() or len(world_size) > 9:
        return
    limit = net.need(net.backlog_max, "backlog_max")
    if int(world_size) > limit:
        yield Finding(
            f"net.core.somaxconn is {limit}, but {world_size} ranks connect to the store on this node",
            evidence=(Evidence("net.backlog_max", str(limit), f"at least {world_size}"),),
            fix_command="sysctl -w net.core.somaxconn=16384",
            severity=Severity.WARNING,
        )
