"""The tables of nccl-tests (`all_reduce_perf`, …) and rccl-tests: bus bandwidth by size, and wrong values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.record import Line, Record, decimal, integer

__all__ = ["read_nccl_tests"]

_PREFIX = pattern(r"(?<!\s)\s*\[\d{1,18},\d{1,18}\]<std\w{1,9}>:")
_RANK = pattern(r"#? *Rank +(\d{1,6}) (?:Group +\d+ )?Pid +\d+ on +(\S+) device +(\d{1,3}) \[[^\]]*\] +(.{1,60}?)\s*$")
_NAME = pattern(r"(?:^|[\s/])(\w+?)_perf\b|Collective test starting: (\w+?)_perf")
_ROW = pattern(
    r"\s*(\d{1,15})\s+(\d{1,15})\s+(\w+)\s+(?:(\w+)\s+)?(?:(-?\d{1,6})\s+)?(\d[\d.]*)\s+(\d[\d.]*)\s+(\d[\d.]*)\s+(\S+)(.*)$"
)
_OUT_OF_BOUNDS = pattern(r"# Out of bounds values : (\d{1,12}) (\w+)")
_SECOND = pattern(r"\s+(\d[\d.]*)\s+(\d[\d.]*)\s+(\d[\d.]*)\s+(\S+)\s*$")
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "sendrecv",
    "gather",
    "scatter",
    "hypercube",
)
FACTOR_TOLERANCE = 0.02
"""How far the ratio of the two bandwidths of a row may be from the factor of a collective: they are printed with two decimals."""
LEAST_RATE = 5.0
"""In GB/s: slower rows have too few digits to compute the factor."""


def read_nccl_tests(lines: Sequence[Line]) -> Record:
    """The record of one run. Without the name of the program, the table itself shows all_reduce: only there the bus bandwidth
    is 2 (n-1)/n of the other one (nccl-tests, doc/PERFORMANCE.md). Other collectives have the same factor as another one.
    """
    record = Record("nccl-tests")
    ranks: dict[int, tuple[str, str]] = {}
    first_rank, wrong = 0, None
    rows: list[tuple[int, float, int]] = []
    factors: list[float] = []
    for number, raw in lines:
        line = _PREFIX.sub("", raw)
        rank, bounds = _RANK.match(line), _OUT_OF_BOUNDS.match(line)
        if rank is not None:
            ranks[int(rank[1])] = (rank[2], rank[4])
            first_rank = first_rank or number
        elif bounds is not None:
            if int(bounds[1]) and wrong is None:
                wrong = (number, f"{bounds[1]} out-of-bounds values")
        elif (row := _ROW.match(line)) is not None:
            best, errors = _bandwidth(row)
            if _rate(row[7]) >= LEAST_RATE:
                factors.append(_rate(row[8]) / _rate(row[7]))
            rows.append((int(row[1]), best, number))
            if errors and wrong is None:
                wrong = (number, f"{errors} wrong values at {row[1]} bytes")
    name = _collective(lines) or _by_factor(factors, len(ranks))
    hosts = sorted({host for host, _ in ranks.values()})
    _probe(record, name, ranks, rows, first_rank)
    if wrong is not None:
        message = f"nccl-tests counted {wrong[1]} in {name or 'a collective'}"
        record.say(
            "probe.observations",
            [{"kind": "wrong_value", "message": message, "ranks": [], "phase": "", "is_cause": True}],
            wrong[0],
        )
    elif rows and _is_validated(lines):
        record.say("probe.observations", [], rows[0][2])
    is_named = len(hosts) == 1 and hosts[0] != "localhost" and "{" not in hosts[0]
    record.host = hosts[0].partition(".")[0] if is_named else None
    record.about = f"{name or 'unnamed collective'}, {len(ranks)} rank{'' if len(ranks) == 1 else 's'}"
    return record


def _is_validated(lines: Sequence[Line]) -> bool:
    """Whether the run compared its results. It prints `Out of bounds values : 0 OK` also with `validation: 0` (`-c 0`)."""
    text = "\n".join(line for _, line in lines)
    return not re.search(r"validation: 0\b", text) and ("validation: " in text or "Out of bounds values : 0 OK" in text)


def _bandwidth(row: re.Match[str]) -> tuple[float, int]:
    """The higher bus bandwidth of the two halves of a row, and the number of wrong values."""
    rates, errors = [_rate(row[8])], [_wrong(row[9])]
    second = _SECOND.match(row[10])
    if second is not None:
        rates.append(_rate(second[3]))
        errors.append(_wrong(second[4]))
    return max(rates), sum(errors)


def _rate(text: str) -> float:
    return decimal(text) or 0.0


def _wrong(text: str) -> int:
    """The column `#wrong`. Older releases print the largest error instead, such as `1e-07`, which is not a count."""
    number = integer(text) if text.isdigit() else None
    return number or 0


def _collective(lines: Sequence[Line]) -> str | None:
    """The collective, from the program's name in the command line or in the first line of newer releases."""
    for _, line in lines:
        matched = _NAME.search(line)
        name = (matched[1] or matched[2]) if matched is not None else None
        if name in _COLLECTIVES:
            return name
    return None


def _by_factor(factors: Sequence[float], ranks: int) -> str | None:
    """`all_reduce` if all rows have its factor, None otherwise."""
    if not factors or ranks < 2:
        return None
    expected = 2 * (ranks - 1) / ranks
    # With two ranks the factor is 1, as that of broadcast.
    return "all_reduce" if ranks > 2 and all(abs(f - expected) <= FACTOR_TOLERANCE for f in factors) else None


def _probe(
    record: Record, name: str | None, ranks: dict[int, tuple[str, str]], rows: list[tuple[int, float, int]], line: int
) -> None:
    """The same facts that a probe of ddpdoctor collects: ranks, device and measurements."""
    if not rows:
        return
    hosts = [{"rank": rank, "host": host.partition(".")[0]} for rank, (host, _) in sorted(ranks.items())]
    models = {model for _, model in ranks.values()}
    at = max(rows)[2]
    if ranks:
        record.say("probe.world_size", len(ranks), line)
        record.say("probe.ranks", hosts, line)
        record.say("probe.device", next(iter(models)) if len(models) == 1 else None, line)
    record.say("probe.backend", "nccl", at)
    if name is not None:
        measured = [
            {"collective": name, "size_bytes": size, "iterations": 1, "latency_seconds": 0.0, "busbw_gb_per_s": rate}
            for size, rate, _ in rows
        ]
        record.say("probe.measurements", measured, at)
