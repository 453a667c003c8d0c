"""What all nodes printed while they waited for each other, and how a finding tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddpdoctor.facts.log import Line, Log
from ddpdoctor.findings import Evidence, Finding, Role, Severity, Where
from ddpdoctor.logs.job_outcome import is_over, says_goodbye
from ddpdoctor.logs.rendezvous_lines import Count, Keys, Knock
from ddpdoctor.rules.log.mentioned_ranks import peer_in
from ddpdoctor.rules.log.signatures import shortened, traceback_of

__all__ = ["TOO_MANY", "Scene", "came", "candidates", "is_farewell", "joined", "names", "ranks_of", "tell"]

_CROWD = re.compile(r"world_size=(?P<world>\d+), worker_count=(?P<came>\d+)")
TOO_MANY = (
    "processes with another WORLD_SIZE (ENV005), two launchers, or a launcher and mp.spawn (LAUNCH056, LAUNCH058), or a "
    "store or init file that still holds an earlier run's keys (NET018): take a fresh port or file, and count the processes."
)
DECIDES = "ddpdoctor check -- LAUNCH, with each node's own line, on every node at the same time, tells these apart."


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that was printed while the nodes waited for each other."""

    log: Log
    knocks: list[Knock]
    counts: list[Count]
    keys: list[Keys]

    @property
    def nodes(self) -> frozenset[str]:
        """Every node, or file, that printed anything."""
        spoken = [line for group in (self.log.lines, self.log.tails) for line in group]
        return frozenset(self.node_of(line) for line in spoken)

    def spans_hosts(self, lines: list[Line]) -> bool:
        """Whether these lines were certainly printed on several hosts: by their names, by node_ranks, or in files of nodes."""
        for told in ([line.who.host for line in lines], [line.who.node_rank for line in lines]):
            known = {each for each in told if each is not None}
            if known and None not in told:
                return len(known) > 1
            if len(known) > 1:
                return True
        files = [self.log.sources[line.source] for line in lines]
        return len({f.name for f in files if f.who.rank is None and f.who.local_rank is None}) > 1

    def node_of(self, line: Line) -> str:
        """The name of what printed the line: its host, its task or its file."""
        if line.who.host is not None:
            return line.who.host
        if line.who.task is not None:
            return f"task {line.who.task}"
        return self.log.sources[line.source].name

    def nodes_of(self, lines: list[Line]) -> list[str]:
        """The names of all that printed these lines, in order."""
        return sorted({self.node_of(line) for line in lines})

    def told(self, lines: list[Line]) -> str:
        """Who printed these lines, for a message: a file's name tells nothing where all came in that one."""
        if len(self.log.sources) == 1 and all(line.who.host is None and line.who.task is None for line in lines):
            ranks = sorted({line.who.rank for line in lines if line.who.rank is not None})
            return f"rank{'s' if len(ranks) > 1 else ''} {names([str(r) for r in ranks])}" if ranks else "a process"
        return names(self.nodes_of(lines))


def candidates(scene: Scene) -> str:
    """What the lines leave open."""
    if scene.knocks and scene.counts:
        named = "a firewall (NET007, NET008), another port or address (ENV017, ENV019, ENV020), a late node (PROBE003)"
    elif scene.knocks:
        named = "rank 0 did not start (PROBE002) or died first, a wrong address (ENV018, NET012), a closed port (NET007, NET008)"
    elif scene.counts:
        named = (
            "a node that never started (PROBE001) or died first, nodes that look for the master elsewhere (ENV017, LAUNCH025), "
            "the same --node-rank twice (LAUNCH036), a closed port (NET007)"
        )
    else:
        named = "a member that never started (PROBE001) or died, endpoints or ids that differ (LAUNCH032, LAUNCH039, LAUNCH035)"
    return f"Undetermined: {named}. {DECIDES}"


def came(line: Line) -> tuple[int, int] | None:
    """How many came to a store's barrier, and of how many."""
    found = _CROWD.search(line.text)
    return None if found is None else (int(found["came"]), int(found["world"]))


def is_farewell(log: Log, line: Line) -> bool:
    """Whether a launcher whose workers were done waited for the others in vain."""
    traceback = traceback_of(log, line)
    return traceback is not None and says_goodbye(traceback)


def joined(count: Count) -> str:
    """How many have joined, in torch's words."""
    return f"{count.joined}/{count.expected} clients joined"


def names(nodes: list[str]) -> str:
    """The names, the first of them where they are many."""
    return ", ".join(nodes) if len(nodes) <= 4 else f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"


def ranks_of(log: Log) -> set[int]:
    """Every rank that printed anything."""
    spoken = [each.who.rank for group in (log.lines, log.tails, log.tracebacks) for each in group]
    return {rank for rank in spoken if rank is not None}


def tell(scene: Scene, lines: list[Line], text: str, also: list[Line], ranks: tuple[int, ...] = ()) -> Finding:
    """The finding that says `text`, with `lines` and some of `also` as its evidence; noise where the job went on."""
    log, first = scene.log, lines[0]
    is_noise = is_over(log, lines)
    peer = peer_in(lines)
    hosts = {line.who.host for line in lines} if peer is not None else set()
    return Finding(
        text,
        tuple(Evidence(log.place(each.source, each.number), shortened(each.text)) for each in (*lines[:3], *also[:2])),
        where=Where(
            rank=ranks[0] if len(ranks) == 1 else None,
            host=hosts.pop() if len(hosts) == 1 else None,
            peer=peer,
            file=log.sources[first.source].name,
            line=first.number,
        ),
        ranks=ranks,
        severity=Severity.NOTE if is_noise else None,
        role=Role.NOISE if is_noise else None,
    )
