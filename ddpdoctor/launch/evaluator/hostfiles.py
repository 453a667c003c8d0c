"""Files with hosts: those of MPI launchers, and DeepSpeed's, with what its options select of them.

Sources: mpirun(1) of Open MPI 4.1 and 5.0, Hydra's `-f`; deepspeed/launcher/runner.py (`_parse_hostfile`, `main`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN

__all__ = ["deepspeed_pool", "selected", "slots_of_hosts"]

_DEEPSPEED_ROW = re.compile(r"^(\S+)\s+slots=(\d+)")


def slots_of_hosts(text: str) -> dict[str, int | None]:
    """Host by host the slots of an MPI host file: `node1 slots=8`, `node1:8`, or a row per slot. None: not given."""
    found: dict[str, int | None] = {}
    rows: dict[str, int] = {}
    for row in text.splitlines():
        words = row.partition("#")[0].split()
        if not words:
            continue
        host, sign, count = words[0].partition(":")
        match = re.search(r"\bslots\s*=\s*(\d{1,5})", row)
        rows[host] = rows.get(host, 0) + 1
        found[host] = int(match[1]) if match else int(count) if sign and count.isdigit() else None
    return {host: rows[host] if slots is None and rows[host] > 1 else slots for host, slots in found.items()}


def deepspeed_pool(text: str) -> dict[str, int] | None:
    """Hosts and slots of DeepSpeed's host file; None where it refuses to read it."""
    found: dict[str, int] = {}
    for row in text.splitlines():
        row = row.strip()
        match = _DEEPSPEED_ROW.search(row)
        if not row or row.startswith("#"):
            continue
        if match is None or match[1] in found:
            return None
        found[match[1]] = int(match[2])
    return found or None


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
