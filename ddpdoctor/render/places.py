"""Where a finding points, in words."""

from __future__ import annotations

from ddpdoctor.findings import Finding

__all__ = ["machine_place", "place", "place_beside"]

MOST_RANKS = 16


def place(finding: Finding) -> str:
    """Host, ranks, GPU and `file:line:column` of the fault, as far as they are known; "" if none is."""
    return ", ".join(part for part in (machine_place(finding), _file(finding)) if part)


def place_beside(finding: Finding, own_host: str) -> str:
    """The place before a message: `file:line:column`, otherwise the part of the machine that the message does not name.

    The host is left out if it is the one that the report is about.
    """
    spot = _file(finding)
    if spot:
        return "" if spot in finding.text else spot
    where = finding.where
    parts = [
        where.node is not None and f"--node {where.node}",
        where.host if where.host != own_host else None,
        _ranks(finding),
        where.gpu is not None and f"GPU {where.gpu}",
    ]
    known = f"{finding.group or ''} {finding.text}"
    return ", ".join(part for part in parts if part and part not in known)


def machine_place(finding: Finding) -> str:
    """The place without the file, for formats that have a field of their own for files."""
    where = finding.where
    parts = [
        where.host and f"host {where.host}",
        where.node_rank is not None and f"node_rank {where.node_rank}",
        _ranks(finding),
        where.local_rank is not None and f"local_rank {where.local_rank}",
        where.gpu is not None and f"GPU {where.gpu}",
        where.peer is not None and f"peer {where.peer}",
        where.node is not None and f"--node line {where.node}",
    ]
    return ", ".join(part for part in parts if part)


def _ranks(finding: Finding) -> str:
    if finding.where.rank is not None:
        return f"rank {finding.where.rank}"
    if not finding.ranks:
        return ""
    told = ", ".join(str(rank) for rank in finding.ranks[:MOST_RANKS])
    return f"ranks {told}" + (f" and {len(finding.ranks) - MOST_RANKS} more" if len(finding.ranks) > MOST_RANKS else "")


def _file(finding: Finding) -> str:
    where = finding.where
    numbers = [str(n) for n in (where.line, where.column) if n is not None]
    return ":".join([where.file, *numbers]) if where.file is not None else ""
