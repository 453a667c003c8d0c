"""ENV004: one rank, two processes."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.observed import observed


@rule("ENV004", "duplicate-rank", Severity.ERROR)
def check(probe: Probe) -> Iterator[Finding]:
    """Two processes of the job have the same RANK.

    ## Why it matters
    Both wait, and so do all others, for the rank that nobody has: `wait timeout after …ms, keys: …/0//cpu//0/2` names the
    missing one, never the one that is there twice. With rank 0 twice, one of them reports EADDRINUSE.

    ## Fix
    Take RANK from the launcher alone, and start processes on one level only: the launcher or mp.spawn, not both.
    """
    yield from observed(probe.seen(Kind.DUPLICATE_RANK), expected="every rank once")
