"""NET020: how long a reverse lookup takes here."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.net import Net
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

__all__ = ["reverse_dns_slow"]

SLOW_SECONDS = 0.5
"""A healthy resolver answers within milliseconds, also with "no such name"."""


@cause("NET020", "reverse-dns-slow", Severity.WARNING)
def reverse_dns_slow(environ: Environ, net: Net) -> Iterator[Finding]:
    """A reverse lookup takes long here, and the store makes one for every rank that connects.

    ## Why it matters
    torch's store asks for the name of each client before it serves the next one. With a slow resolver a start of 1000
    ranks takes minutes, without any error.

    ## Fix
    Put the nodes of the job into /etc/hosts on the master's node, or repair its resolver for reverse lookups.
    """
    net.need_several_nodes(environ)
    if net.is_master is False:
        return
    slowest = max(net.reverse, key=lambda r: r.seconds, default=None)
    if slowest is not None and (slowest.is_late or slowest.seconds > SLOW_SECONDS):
        took = f"no answer after {slowest.seconds:.1f} s" if slowest.is_late else f"{slowest.seconds:.1f} s"
        yield Finding(
            f"the reverse lookup of {slowest.addresses[0]} takes long ({took}); milliseconds were expected",
            evidence=(Evidence("net.reverse", took, f"less than {SLOW_SECONDS} s"),),
        )
