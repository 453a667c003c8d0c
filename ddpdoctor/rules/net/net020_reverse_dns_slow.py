"""NET020: slow reverse DNS lookups."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.net import Net
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

__all__ = ["reverse_dns_slow"]

SLOW_SECONDS = 0.5
"""A healthy resolver answers within milliseconds, even with "no such name"."""


@cause("NET020", "reverse-dns-slow", Severity.WARNING)
def reverse_dns_slow(environ: Environ, net: Net) -> Iterator[Finding]:
    """Reverse DNS lookups are slow; the store makes one per rank.

    ## Why it matters
    torch's store looks up the name of each client before it serves the next one. With a slow resolver the start of 1000 ranks
    takes minutes, without any error.

    ## Fix
    Add the nodes of the job to /etc/hosts of the master's node, or repair its resolver for reverse lookups.

    ## Example
    ddpdoctor's message:

        the reverse DNS lookup of 10.20.0.11 is slow (0.9 s)

    In /etc/hosts of the master's node:

        # before
        127.0.0.1   localhost
        # after
        127.0.0.1   localhost
        10.20.0.11  node1
        10.20.0.12  node2
    """
    net.need_several_nodes(environ)
    if net.is_master is False:
        return
    slowest = max(net.reverse, key=lambda r: r.seconds, default=None)
    if slowest is not None and (slowest.is_late or slowest.seconds > SLOW_SECONDS):
        took = f"no answer after {slowest.seconds:.1f} s" if slowest.is_late else f"{slowest.seconds:.1f} s"
        yield Finding(
            f"the reverse DNS lookup of {slowest.addresses[0]} is slow ({took})",
            evidence=(Evidence("net.reverse", took, f"less than {SLOW_SECONDS} s"),),
        )
