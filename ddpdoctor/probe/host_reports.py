"""Reports of all ranks of a host as one record: common values once, and the differences per rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import RankReport

__all__ = ["pack", "shown_reports", "unpack"]

MOST_REPORTS = 256
MOST_OF_A_KIND = 8
"""Above MOST_REPORTS ranks, a verdict has this many of the ranks with the longest and shortest times of each kind."""


def pack(reports: Sequence[RankReport]) -> dict[str, Any]:
    """One record of these reports, at least one."""
    encoded = [encode(report) for report in reports]
    first = encoded[0]
    common = {name: value for name, value in first.items() if all(values.get(name) == value for values in encoded)}
    own = [{name: value for name, value in values.items() if name not in common} for values in encoded]
    return {"common": common, "ranks": own}


def unpack(records: Iterable[dict[str, Any]]) -> list[RankReport]:
    """The reports in these records, in order of rank; the last one per rank."""
    reports: dict[int, RankReport] = {}
    for record in records:
        common = record["common"]
        for own in record["ranks"]:
            values = {**common, **own}
            if "nccl_warnings" in values:
                values["nccl_warnings"] = tuple(values["nccl_warnings"])
            report = RankReport(**values)
            reports[report.rank] = report
    return [reports[rank] for rank in sorted(reports)]


def shown_reports(reports: Sequence[RankReport], named: Iterable[int] = ()) -> tuple[RankReport, ...]:
    """All reports of a small job; of a large one, those that are named, differ, warn, or have extreme times."""
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
