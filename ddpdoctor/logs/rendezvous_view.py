"""What all nodes printed while they waited for each other."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.rendezvous_lines import ClientCount, FailedConnection, MissingKeys
from ddpdoctor.logs.traceback_of_line import traceback_of

__all__ = ["UNNAMED", "RendezvousView", "clients_joined", "is_at_exit_barrier", "names", "workers_joined"]

UNNAMED = "a process"
"""The name of a process of which neither the rank nor the host is known."""
_WORKERS = re.compile(r"world_size=(?P<world>\d+), worker_count=(?P<joined>\d+)")


@dataclass(frozen=True, slots=True)
class RendezvousView:
    """Everything that was printed while the nodes waited for each other."""

    log: Log
    failed_connections: list[FailedConnection]
    client_counts: list[ClientCount]
    missing_keys: list[MissingKeys]

    @property
    def nodes(self) -> frozenset[str]:
        """Every node, or file, that printed anything."""
        spoken = [line for group in (self.log.lines, self.log.tails) for line in group]
        return frozenset(self.node_of(line) for line in spoken)

    def spans_hosts(self, lines: list[LogLine]) -> bool:
        """Whether these lines were certainly printed on several hosts: by their names, by node_ranks, or in files of nodes."""
        for values in ([line.who.host for line in lines], [line.who.node_rank for line in lines]):
            known = {each for each in values if each is not None}
            if known and None not in values:
                return len(known) > 1
            if len(known) > 1:
                return True
        files = [self.log.sources[line.source] for line in lines]
        return len({f.name for f in files if f.who.rank is None and f.who.local_rank is None}) > 1

    def node_of(self, line: LogLine) -> str:
        """The name of what printed the line: its host, its task or its file."""
        if line.who.host is not None:
            return line.who.host
        if line.who.task is not None:
            return f"task {line.who.task}"
        return self.log.sources[line.source].name

    def nodes_of(self, lines: list[LogLine]) -> list[str]:
        """The names of all that printed these lines, in order."""
        return sorted({self.node_of(line) for line in lines})

    def speakers_of(self, lines: list[LogLine]) -> str:
        """Who printed these lines, for a message: a file's name adds nothing where there is one file."""
        if len(self.log.sources) == 1 and all(line.who.host is None and line.who.task is None for line in lines):
            ranks = sorted({line.who.rank for line in lines if line.who.rank is not None})
            return f"rank{'s' if len(ranks) > 1 else ''} {names([str(r) for r in ranks])}" if ranks else UNNAMED
        return names(self.nodes_of(lines))


def workers_joined(line: LogLine) -> tuple[int, int] | None:
    """How many workers joined a store's barrier, and of how many."""
    found = _WORKERS.search(line.text)
    return None if found is None else (int(found["joined"]), int(found["world"]))


def is_at_exit_barrier(log: Log, line: LogLine) -> bool:
    """Whether the line is of a launcher whose workers were done and that waited for the other launchers."""
    traceback = traceback_of(log, line)
    return traceback is not None and traceback.is_exit_barrier


def clients_joined(count: ClientCount) -> str:
    """How many have joined, in torch's words."""
    return f"{count.joined}/{count.expected} clients joined"


def names(nodes: list[str]) -> str:
    """The names, the first of them where they are many."""
    return ", ".join(nodes) if len(nodes) <= 4 else f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"
