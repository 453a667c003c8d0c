"""The records of NCCL's Inspector plugin: time and bandwidth of each collective of one process, one JSON object per record.

Source: NCCL ext-profiler/inspector (README.md, inspector_json.cc), formats v4.0 and newer; older ones have no `header`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.tool_output.record import Line, Record

__all__ = ["read_inspector"]

COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
MOST_RECORDS = 200_000
LEAST_RECORDS = 20
"""The time of a collective contains the wait for the last rank: of fewer records, the best one says little about the links."""
BY_GPU = ("kernel_gpu", "gpu_globaltimer")
"""Clocks of the GPU. Times by a clock of the CPU contain the launch."""


@dataclass
class _Communicator:
    """What the records of one communicator show; `best` has the best rate by collective and size, with its line."""

    size: int
    nodes: int
    line: int
    hosts: dict[int, str] = field(default_factory=dict)
    records: int = 0
    best: dict[tuple[str, int], tuple[float, int, int]] = field(default_factory=dict)


def read_inspector(lines: Sequence[Line]) -> Record:
    """The record of the largest communicator within one node: ranks, and the best bandwidth by collective and size."""
    record = Record("NCCL Inspector")
    found: dict[tuple[str, int], _Communicator] = {}
    count = 0
    for number, each in _objects(lines):
        count += 1
        _take(found, each, number)
    ranks = {rank for each in found.values() for rank in each.hosts}
    record.about = f"{count} record{'' if count == 1 else 's'}, {len(ranks)} rank{'' if len(ranks) == 1 else 's'}"
    if not count:
        return record
    within = [each for each in found.values() if each.nodes == 1 and each.size > 1]
    hosts = {host for each in found.values() for host in each.hosts.values()}
    record.host = hosts.pop().partition(".")[0] if len(hosts) == 1 else None
    if not within:
        is_known = any(each.nodes > 1 for each in found.values())
        record.refusal = (
            "bandwidths between nodes, for which no numbers are published"
            if is_known
            else "records without the number of nodes, so no published bandwidth applies"
        )
        return record
    _measurements(record, max(within, key=lambda each: (each.size, each.records)))
    if "probe.measurements" not in record.values:
        record.refusal = (
            f"fewer than {LEAST_RECORDS} collectives of one size, timed by the GPU: too few to judge its links"
        )
    return record


def _objects(lines: Sequence[Line]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects, each with the line where it begins; what is cut off ends the list."""
    decoder = json.JSONDecoder()
    waiting: list[Line] = []
    for number, line in lines:
        if not waiting and not line.lstrip().startswith("{"):
            continue
        waiting.append((number, line))
        if not line.rstrip().endswith("}") or (waiting[0][1].rstrip() == "{" and line.rstrip() != "}"):
            continue
        try:
            value, _ = decoder.raw_decode("\n".join(text for _, text in waiting).lstrip())
        except (ValueError, RecursionError):
            waiting = waiting if len(waiting) < 200 else []
            continue
        if isinstance(value, dict):
            yield waiting[0][0], value
        waiting = []


def _take(found: dict[tuple[str, int], _Communicator], each: dict[str, Any], line: int) -> None:
    header = each["header"] if isinstance(each.get("header"), dict) else each
    metadata = each["metadata"] if isinstance(each.get("metadata"), dict) else each
    perf = each.get("coll_perf")
    rank, size, nodes = (_count(header.get(name)) for name in ("rank", "n_ranks", "nnodes"))
    if rank is None or size is None or len(found) > MOST_RECORDS:
        return
    known = found.setdefault((str(header.get("id", ""))[:40], size), _Communicator(size, nodes or 0, line))
    known.hosts[rank] = str(metadata.get("hostname", ""))[:255]
    known.records += 1
    if not isinstance(perf, dict) or perf.get("coll_timing_source", BY_GPU[0]) not in BY_GPU:
        return
    name, length, rate = (
        COLLECTIVES.get(str(perf.get("coll"))),
        _count(perf.get("coll_msg_size_bytes")),
        perf.get("coll_busbw_gbs"),
    )
    if name is None or length is None or isinstance(rate, bool) or not isinstance(rate, int | float):
        return
    best, at, times = known.best.get((name, length), (-1.0, line, 0))
    known.best[name, length] = (max(best, float(rate)), line if rate > best else at, times + 1)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _measurements(record: Record, found: _Communicator) -> None:
    judged = {key: value for key, value in found.best.items() if value[2] >= LEAST_RECORDS}
    if not judged:
        return
    at = judged[max(judged, key=lambda key: key[1])][1]
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in found.hosts.items():
        by_host[host].append(rank)
    here = next(iter(by_host)).partition(".")[0]
    record.say("probe.world_size", found.size, found.line)
    record.say("probe.ranks", [{"rank": rank, "host": here} for rank in range(found.size)], found.line)
    record.say("probe.backend", "nccl", at)
    measured = [
        {"collective": name, "size_bytes": size, "iterations": times, "latency_seconds": 0.0, "busbw_gb_per_s": rate}
        for (name, size), (rate, _, times) in sorted(judged.items())
    ]
    record.say("probe.measurements", measured, at)
