"""Findings from NCCL's RAS: LOG001, LOG004."""

from __future__ import annotations

from ddpdoctor.dumps.conflict import ranges
from ddpdoctor.facts.ras import Peer, Ras
from ddpdoctor.findings import Evidence, Finding, Severity, Where


def ras_finding(ras: Ras, peers: tuple[Peer, ...], message: str, severity: Severity | None = None) -> Finding:
    single = peers[0] if len(peers) == 1 else None
    return Finding(
        message,
        (Evidence("hang.ras", f"communicator {ras.name}: {ranges(p.rank for p in peers)}", "the same on all ranks"),),
        where=Where(host=single.host or None if single else None, rank=single.rank if single else None),
        ranks=tuple(p.rank for p in peers),
        severity=severity,
    )
