"""NET018: a store that outlives its job, as launch lines and logs show it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch import Launch
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.lines.store import stale


@rule(
    "NET018",
    "rendezvous-store-stale",
    Severity.ERROR,
    signatures=("RendezvousClosedError", r"The rendezvous '[^']*' is closed"),
)
def check(launch: Launch) -> Iterator[Finding]:
    """The rendezvous store still holds keys of an earlier run.

    ## Why it matters
    `RendezvousClosedError`, or ranks that read the addresses of a dead job and are refused: an init file, or a rendezvous id in
    etcd, outlives the job that wrote it.

    ## Fix
    A new file and a new --rdzv-id for each attempt; remove the file before the start.
    """
    yield from stale(launch)
