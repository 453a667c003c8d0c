"""Lines of a rendezvous: which process could not connect where, how many clients joined, which keys were never written."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of

__all__ = [
    "ClientCount",
    "FailedConnection",
    "MissingKeys",
    "client_counts",
    "failed_connections",
    "missing_keys",
]

_KNOCK = re.compile(
    r"(?:timed out after \d+m?s while trying to connect to|any network address of) "
    r"\(?(?P<host>[^,()\s]+?)(?:, |:)(?P<port>\d+)\b\)?"
)
_ERRNO = re.compile(r"errno: (?P<number>\d+) - ")
_ADDRESS_KEY = re.compile(r"/default_pg/\d+//\w+//\d+/(?P<rank>\d+)")
_AGENT_KEY = re.compile(r"/torchelastic/(?P<what>role_info|assigned_ranks)/(?P<node>\d+)")


@dataclass(frozen=True, slots=True)
class FailedConnection:
    """A process could not connect to the store at `host`:`port`; `errno` is the kernel's, None for a time-out."""

    line: LogLine
    host: str
    port: int
    errno: int | None


@dataclass(frozen=True, slots=True)
class ClientCount:
    """The host of a store waited: `joined` of `expected` clients joined."""

    line: LogLine
    joined: int
    expected: int


@dataclass(frozen=True, slots=True)
class MissingKeys:
    """A process waited for store keys that were never written: the addresses of `ranks`, or those of the agents of `nodes`.

    `is_first_node`: it waited for the keys of all agents, as only the agent of the first node does.
    """

    line: LogLine
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    is_first_node: bool


def failed_connections(log: Log) -> list[FailedConnection]:
    """Every failed attempt to reach a store, once per process and address."""
    found: dict[object, FailedConnection] = {}
    for line in log.lines:
        match = _KNOCK.search(line.text)
        if match is None:
            continue
        number = _ERRNO.search(line.text)
        errno = int(number["number"]) if number is not None else None
        knock = FailedConnection(line, match["host"], int(match["port"]), errno)
        key = (line.source, line.who.rank, knock.host, knock.port)
        if key not in found or (found[key].errno is None and errno is not None):
            found[key] = knock
    return list(found.values()) or _last_tries(log)


def _last_tries(log: Log) -> list[FailedConnection]:
    """Attempts that got no answer, where the only log ends with them."""
    tries = list(context_lines(log, "tries"))
    ends = len(log.sources) == 1 and tries and not history_of(log).progress_after(tries[-1][0])
    if not ends:
        return []
    line, match = tries[-1]
    return [FailedConnection(line, match["host"].removeprefix("::ffff:"), int(match["port"]), int(match["number"]))]


def client_counts(log: Log) -> list[ClientCount]:
    """Every host of a store whose clients did not all join."""
    found = {
        (line.source, line.who.rank): ClientCount(line, int(match["joined"]), int(match["expected"]))
        for line, match in context_lines(log, "clients")
    }
    return list(found.values())


def missing_keys(log: Log) -> list[MissingKeys]:
    """Every process that waited for keys that were never written, once per process."""
    found: dict[object, MissingKeys] = {}
    for line, match in context_lines(log, "keys"):
        ranks = tuple(sorted({int(m["rank"]) for m in _ADDRESS_KEY.finditer(match["keys"])}))
        agents = list(_AGENT_KEY.finditer(match["keys"]))
        nodes = tuple(sorted({int(m["node"]) for m in agents}))
        is_first = any(m["what"] == "role_info" for m in agents)
        found.setdefault((line.source, line.who.rank), MissingKeys(line, ranks, nodes, is_first))
    return list(found.values())
