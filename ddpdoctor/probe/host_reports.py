"""Reports of all ranks of a host as one record: what they share once, and in what each differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import RankReport

__all__ = ["pack", "shown_reports", "unpack"]

MOST_REPORTS = 256
MOST_OF_A_KIND = 8
"""Above MOST_REPORTS ranks, a verdict carries so many of those that waited, imported or computed longest or shortest."""


def pack(reports: Sequence[RankReport]) -> dict[str, Any]:
    """One record of these reports, at least one."""
    encoded = [encode(each) for each in reports]
    first = encoded[0]
    common = {name: value for name, value in first.items() if all(each.get(name) == value for each in encoded)}
    own = [{name: value for name, value in each.items() if name not in common} for each in encoded]
    return {"common": common, "ranks": own}


def unpack(records: Iterable[dict[str, Any]]) -> list[RankReport]:
    """The reports in these records, in order of rank; of one rank the last one."""
    found: dict[int, RankReport] = {}
    for record in records:
        common = record["common"]
        for own in record["ranks"]:
            words = {**common, **own}
            if "nccl_warnings" in words:
                words["nccl_warnings"] = tuple(words["nccl_warnings"])
            report = RankReport(**words)
            found[report.rank] = report
    return [found[rank] for rank in sorted(found)]


def shown_reports(reports: Sequence[RankReport], named: Iterable[int] = ()) -> tuple[RankReport, ...]:
    """All reports of a small job; of a large one those that are named, differ, warn, or stand at an end of the times."""
    if len(reports) <= MOST_REPORTS:
        return tuple(reports)
    wanted = set(named) | {r.rank for r in reports if r.traits or r.nccl_warnings or r.error}
    for name in ("import_seconds", "waited_seconds", "barrier", "all_reduce"):
        times = sorted((time, r.rank) for r in reports if (time := _time(r, name)) is not None)
        wanted |= {rank for _, rank in (*times[:MOST_OF_A_KIND], *times[-MOST_OF_A_KIND:])}
    return tuple(r for r in reports if r.rank in wanted)[:MOST_REPORTS]


def _time(report: RankReport, name: str) -> float | None:
    seconds: float | None = report.took.get(name) if name in ("barrier", "all_reduce") else getattr(report, name)
    return seconds
