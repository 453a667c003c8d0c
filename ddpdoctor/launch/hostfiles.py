"""Files with hosts: those of MPI launchers, and DeepSpeed's, with what its options select of them.

Sources: mpirun(1) of Open MPI 4.1 and 5.0, Hydra's `-f`; deepspeed/launcher/runner.py (`_parse_hostfile`, `main`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN

__all__ = ["deepspeed_pool", "is_pool_row", "malformed_row", "selected", "slots_of_hosts"]

_DEEPSPEED_ROW = re.compile(r"(\S+)\s+slots=(\d{1,6})")


def slots_of_hosts(text: str) -> dict[str, int | None]:
    """Host by host the slots of an MPI host file: `node1 slots=8`, `node1:8`, or a row per slot. None: not given."""
    slots: dict[str, int | None] = {}
    times: dict[str, int] = {}
    for _, row in _rows(text):
        host, sign, count = row.split()[0].partition(":")
        match = re.search(r"\bslots\s*=\s*(\d{1,5})", row)
        times[host] = times.get(host, 0) + 1
        slots[host] = int(match[1]) if match else int(count) if sign and count.isdigit() else None
    return {host: times[host] if own is None and times[host] > 1 else own for host, own in slots.items()}


def deepspeed_pool(text: str) -> dict[str, int] | None:
    """Hosts and slots of DeepSpeed's host file; None where it refuses to read it."""
    return None if malformed_row(text) is not None else dict(_pool_rows(text)) or None


def is_pool_row(row: str) -> bool:
    """Whether DeepSpeed can read a row by itself."""
    return _DEEPSPEED_ROW.match(row) is not None


def malformed_row(text: str) -> tuple[int, str] | None:
    """The first row that DeepSpeed refuses, with its number from 1: not `HOST slots=N`, or a host for the second time."""
    seen = set()
    for number, row in _rows(text):
        match = _DEEPSPEED_ROW.match(row)
        if match is None or match[1] in seen:
            return number, row
        seen.add(match[1])
    return None


def _pool_rows(text: str) -> Iterator[tuple[str, int]]:
    matches = (_DEEPSPEED_ROW.match(row) for _, row in _rows(text))
    return ((match[1], int(match[2])) for match in matches if match)


def _rows(text: str) -> Iterator[tuple[int, str]]:
    """The rows with content and without comments, with their numbers from 1."""
    for number, row in enumerate(text.splitlines(), start=1):
        content = row.partition("#")[0].strip()
        if content:
            yield number, content


def selected(pool: Mapping[str, int], layer: Layer) -> dict[str, tuple[int, ...]] | None:
    """The GPUs of each host that deepspeed uses of a pool; None where its options are unknown or contradict the pool."""
    active = {host: tuple(range(slots)) for host, slots in pool.items()}
    include, exclude = layer.value("include") or "", layer.value("exclude") or ""
    if UNKNOWN in include + exclude or (include and exclude):
        return None
    if include or exclude:
        chosen = _chosen(active, include or exclude)
        if chosen is None:
            return None
        left = {host: tuple(g for g in active[host] if g not in (chosen.get(host) or ())) for host in active}
        active = {host: gpus for host, gpus in (chosen if include else left).items() if gpus}
        active = {host: active[host] for host in pool if host in active}
    nodes, gpus = _number(layer.value("num_nodes")), _number(layer.value("num_gpus"))
    if nodes:
        active = dict(list(active.items())[:nodes])
    return {host: tuple(range(gpus)) for host in active} if gpus else active


def _chosen(active: Mapping[str, tuple[int, ...]], text: str) -> dict[str, tuple[int, ...]] | None:
    """`worker-0@worker-1:0,2`; None for a host or slot that is not there."""
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        host, sign, slots = part.partition(":")
        numbers = tuple(int(slot) for slot in slots.split(",") if slot.isdigit())
        if host not in active or (sign and not numbers):
            return None
        found[host] = numbers or active[host]
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None
