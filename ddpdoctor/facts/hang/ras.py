"""What NCCL's RAS answers, as text (`ncclras`, 2.24 on) or JSON (2.28 on): which rank lags, is dead or did not answer.

RAS counts the collectives of each rank; it knows neither why nor where in the script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Peer", "Ras", "is_ras", "ras_of"]

MOST_RANKS = 100_000
_BEGINS = re.compile(
    r"^\s*NCCL version [\d.]+ compiled with CUDA|^\s*Job summary\s*$|^#\d+-\d+ \([0-9a-f]+\) [A-Z]+", re.MULTILINE
)
_COMMUNICATOR = re.compile(r"^#(\d+-\d+) \(([0-9a-f]+)\) ([A-Z_]+)")
_HEADING = re.compile(r"^(INCOMPLETE|DEAD|TIMEOUT|MISMATCH)\b")
_COUNT = re.compile(r"(\d+) ranks? ha(?:ve|s) (?:launched|completed) up to operation (\d+)")
_RANK = re.compile(r"Rank (\d+)\b(?: -- GPU (\d+) managed by process (\d+) on node (\S+))?")
_PROCESS = re.compile(r"Process (\d+) on node (\S+) managing GPU (\d+)")


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank as NCCL's RAS knows it. `counts` are its collectives by kind, `trouble` what RAS says is wrong with it."""

    rank: int
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Ras:
    """What NCCL's RAS answered about one communicator. `highest` is the count that its ranks came to, listed or not."""

    source: str
    name: str = ""
    size: int | None = None
    highest: int | None = None
    peers: tuple[Peer, ...] = ()


def is_ras(text: str) -> bool:
    """Whether a text is what RAS answers."""
    start = text.lstrip()[:1]
    return (
        ('"communicators"' in text[:65536] and '"nccl_version"' in text)
        if start == "{"
        else bool(_BEGINS.search(text[:65536]))
    )


def ras_of(source: str, text: str) -> tuple[Ras, ...]:
    """The communicators in an answer. Only those of which something is told rank by rank have `peers`.

    Raises:
        ValueError: it begins like JSON and is none.
    """
    if text.lstrip().startswith("{"):
        try:
            return tuple(_of_json(source, json.loads(text)))
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
    return tuple(_of_text(source, text))


def _of_text(source: str, text: str) -> Iterator[Ras]:
    found: dict[str, dict[int, Peer]] = {}
    sizes: dict[str, int] = {}
    highest: dict[str, int] = {}
    name, trouble, count = "", "", None
    for line in text.splitlines():
        communicator, heading = _COMMUNICATOR.match(line), _HEADING.match(line)
        if communicator:
            name, trouble, count = f"#{communicator[1]} ({communicator[2]})", communicator[3].lower(), None
        elif heading:
            name, trouble, count = "", heading[1].lower(), None
        elif counted := _COUNT.search(line):
            count = int(counted[2])
            sizes[name] = sizes.get(name, 0) + int(counted[1])
            highest[name] = max(highest.get(name, 0), count)
        elif rank := _RANK.search(line):
            _add(found.setdefault(name, {}), rank, trouble, count)
    for each, peers in found.items():
        yield Ras(source, each, sizes.get(each), highest.get(each), tuple(peers[rank] for rank in sorted(peers)))


def _add(peers: dict[int, Peer], match: re.Match[str], trouble: str, count: int | None) -> None:
    rank = int(match[1])
    if len(peers) >= MOST_RANKS:
        return
    before = peers.get(rank, Peer(rank))
    words = trouble if trouble != "mismatch" and trouble != "running" else before.trouble
    counts = before.counts if count is None else {"operations": count}
    gpu, pid, host = match[2], match[3], match[4]
    peers[rank] = Peer(
        rank, host or before.host, int(pid) if pid else before.pid, int(gpu) if gpu else before.gpu, counts, words
    )


def _of_json(source: str, content: Any) -> Iterator[Ras]:
    groups = content.get("communicators") if isinstance(content, dict) else None
    for each in groups if isinstance(groups, list) else ():
        if isinstance(each, dict):
            yield Ras(
                source,
                str(each.get("hash", each.get("comm_hash", "")))[:80],
                _int(each.get("size", each.get("nranks"))),
                None,
                _peers(each),
            )


def _peers(communicator: dict[str, Any]) -> tuple[Peer, ...]:
    found = {}
    for each in _dicts(communicator.get("ranks")):
        rank = _int(each.get("rank"))
        if rank is None:
            continue
        counts = each.get("collective_counts")
        known = {str(k): n for k, v in counts.items() if (n := _int(v)) is not None} if isinstance(counts, dict) else {}
        status = each.get("status")
        error = (status if isinstance(status, dict) else each).get("async_error")
        trouble = "" if error in (None, 0, "ncclSuccess", "NCCL_SUCCESS") else f"error {error}"
        host, pid = str(each.get("host", each.get("node", "")))[:200], _int(each.get("pid"))
        found[rank] = Peer(rank, host, pid, _int(each.get("cuda_dev")), known, trouble)
    for each in _dicts(communicator.get("missing_ranks")):
        rank = _int(each.get("rank"))
        if rank is not None:
            trouble = "dead" if each.get("considered_dead") else "incomplete"
            found[rank] = Peer(rank, str(each.get("host", ""))[:200], _int(each.get("pid")), None, {}, trouble)
    return tuple(found[rank] for rank in sorted(found))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _int(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
