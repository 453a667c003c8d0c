"""What NCCL's RAS answers, as text (`ncclras`, 2.24 on) or JSON (2.28 on): which rank lags, is dead or did not answer.

RAS counts the collectives of each rank; it knows neither why nor where in the script.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ddpdoctor.facts.ras import Peer, Ras

__all__ = ["ras_of"]

MOST_RANKS = 100_000
IN_PROGRESS = 7
"""ncclInProgress, which is no error."""
_NO_COMMA = re.compile(r'("nvml_dev": -?\d{1,9})(\s{1,40}"status":)')
"""What 2.28.7 to 2.28.9 print of a missing rank: src/ras/client_support.cc, jsonWriteMissingRank."""
_COMMUNICATOR = re.compile(r"^#(\d+-\d+) \(([0-9a-f]+)\) ([A-Z_]+)")
_HEADING = re.compile(r"^(INCOMPLETE|DEAD|TIMEOUT|MISMATCH)\b")
_KIND = re.compile(r"ranks have different (?:(\w+) operation counts|status)")
_MANY = re.compile(r"(?<!\d)(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(
    r"Rank (\d+)\b(?: has (?P<said>launched up to operation (?P<count>\d+)|not launched any operations|status \w+)"
    r"| reported (?P<error>[^-]+?))?(?: -- GPUs? (?P<gpu>\d+)[^-]* managed by process (?P<pid>\d+) on node (?P<host>\S+))?"
)


def ras_of(source: str, text: str) -> tuple[Ras, ...]:
    """The communicators in an answer. Only those with lines about single ranks have `peers`.

    Raises:
        ValueError: it begins like JSON and is none.
    """
    if text.lstrip().startswith("{"):
        try:
            return tuple(_of_json(source, json.loads(_NO_COMMA.sub(r"\1,\2", text))))
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
    return tuple(_of_text(source, text))


def _of_text(source: str, text: str) -> Iterator[Ras]:
    reading = _RasText()
    for line in text.splitlines():
        reading.take(line)
    for name, peers in reading.found.items():
        ranks = tuple(peers[rank] for rank in sorted(peers))
        tallies = {kind: dict(counted) for kind, counted in reading.tallies[name].items()}
        size = max((sum(counted.values()) for counted in tallies.values()), default=None)
        yield Ras(source, name, size, tallies, ranks)


class _RasText:
    """The communicator, the kind of collective and the count that the lines being read are about."""

    def __init__(self) -> None:
        self.found: dict[str, dict[int, Peer]] = {}
        self.tallies: defaultdict[str, defaultdict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
        self.name = self.trouble = self.kind = ""
        self.count: int | None = None

    def take(self, line: str) -> None:
        """Take in the next line."""
        communicator, heading = _COMMUNICATOR.match(line), _HEADING.match(line)
        if communicator or heading:
            self.name = f"#{communicator[1]} ({communicator[2]})" if communicator else ""
            self.trouble = (communicator[3] if communicator else heading[1] if heading else "").lower()
            self.kind, self.count = "", None
        elif kind := _KIND.search(line):
            self.kind, self.count = kind[1] or "", None
        elif many := _MANY.search(line):
            self.count = int(many[2] or 0)
            self.tallies[self.name][self.kind][self.count] += int(many[1])
        elif (rank := _RANK.search(line)) and len(self.found.setdefault(self.name, {})) < MOST_RANKS:
            self._add(rank)

    def _add(self, found: re.Match[str]) -> None:
        rank, said, count = int(found[1]), found["said"] or "", self.count
        if "launched" in said:
            count = int(found["count"] or 0)
            self.tallies[self.name][self.kind][count] += 1
        before = self.found[self.name].get(rank, Peer(rank))
        trouble = before.trouble if self.trouble in ("mismatch", "running") else self.trouble
        self.found[self.name][rank] = Peer(
            rank,
            found["host"] or before.host,
            int(found["pid"]) if found["pid"] else before.pid,
            int(found["gpu"]) if found["gpu"] else before.gpu,
            before.counts if count is None else {**before.counts, self.kind: count},
            f"error {found['error'].strip()}" if found["error"] else trouble,
        )


def _of_json(source: str, content: Any) -> Iterator[Ras]:
    groups = content.get("communicators") if isinstance(content, dict) else None
    for each in groups if isinstance(groups, list) else ():
        if isinstance(each, dict):
            yield Ras(
                source,
                str(each.get("hash", each.get("comm_hash", "")))[:80],
                _int(each.get("size", each.get("nranks"))),
                peers=_peers(each),
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
        trouble = "" if error in (None, 0, IN_PROGRESS) else f"error {error}"
        host, pid = str(each.get("host", each.get("node", "")))[:200], _int(each.get("pid"))
        found[rank] = Peer(rank, host, pid, _int(each.get("cuda_dev")), known, trouble)
    for each in _dicts(communicator.get("missing_ranks")):
        rank = _int(each.get("rank"))
        if rank is not None:
            status = each.get("status")
            is_dead = (status if isinstance(status, dict) else each).get("considered_dead") is True
            trouble = "dead" if is_dead else "incomplete"
            found[rank] = Peer(rank, str(each.get("host", ""))[:200], _int(each.get("pid")), None, {}, trouble)
    return tuple(found[rank] for rank in sorted(found))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _int(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
