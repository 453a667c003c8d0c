"""What a log as a whole says of its processes: ranks by process id, file and local rank, and whether numbers count ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field

from ddpdoctor.facts.log import Exit, Log, LogLine, Traceback
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import QUOTED_LINES

__all__ = ["AGENT", "KnownProcesses", "is_of_launcher", "known_processes", "world_size_of"]

AGENT = "torch/distributed/elastic"
_LATER_NODES = re.compile(r"(?:worker|node|slave|replica|machine)-?0*[1-9]\d*$", re.IGNORECASE)
"""Names of nodes that need not be the first."""

MOST_TOLD = 4000
"""Characters of a line in which the name of its host is looked for."""
_TOLD_HOST = re.compile(
    r"^(?:\(\S+\) )?[A-Za-z][\w.-]*@(?P<host>[A-Za-z][\w.-]*)[: ][^\n]{0,60}[$#%>] "
    r"|\*\*\* (?:JOB|STEP) \S+ ON (?P<slurm>[A-Za-z][\w.-]*) CANCELLED"
    r"|\bon (?:the )?(?:node|host) `?(?P<prose>[A-Za-z][\w-]*\d[\w-]*)\b"
)
"""The host in a shell's prompt, in Slurm's word about a job, or in a sentence."""


@dataclass(slots=True)
class KnownProcesses:
    """What the log as a whole says of its processes."""

    by_pid: dict[tuple[str | None, int], int] = field(default_factory=dict)
    by_actor: dict[int, int] = field(default_factory=dict)
    by_local: dict[tuple[int, int], int] = field(default_factory=dict)
    rank_of_source: dict[int, int] = field(default_factory=dict)
    host_of_source: dict[int, str] = field(default_factory=dict)
    is_first_node: bool = True
    """Whether all lines may be of one node, the first: its local ranks are the ranks then."""
    devices_are_ranks: bool = False
    tasks_are_nodes: bool = False


def world_size_of(log: Log) -> int | None:
    """The number of ranks that the lines name, None when none does."""
    sure = [int(found["ranks"]) for _, found in context_lines(log, "communicator")]
    sure += [int(found["members"]) for _, found in context_lines(log, "member")]
    sure += [int(found["world"]) for _, found in context_lines(log, "barrier")]
    sure += [int(found["world"]) for _, found in context_lines(log, "worlds")]
    return max(sure, default=None)


def known_processes(log: Log) -> KnownProcesses:
    """What the lines, tracebacks and exits that name their rank show about the others."""
    is_first_node = _is_first_node(log)
    known = KnownProcesses(
        rank_of_source=dict(_ranks_of_sources(log)),
        host_of_source=_hosts_of_sources(log),
        is_first_node=is_first_node,
        devices_are_ranks=is_first_node and _devices_are_ranks(log),
        tasks_are_nodes=_tasks_are_nodes(log),
    )
    for each in log.spoken:
        who = each.who
        if who.rank is not None and who.pid is not None:
            known.by_pid[who.host, who.pid] = who.rank
            known.by_pid.setdefault((None, who.pid), who.rank)
        if who.rank is not None and who.local_rank is not None:
            known.by_local[each.source, who.local_rank] = who.rank
    for line, found in context_lines(log, "communicator"):
        if line.who.pid is not None and line.who.rank is None:
            known.by_pid.setdefault((line.who.host, line.who.pid), int(found["rank"]))
    for _, found in context_lines(log, "ray_worker"):
        known.by_pid[found["host"], int(found["pid"])] = int(found["rank"])
        known.by_actor[int(found["pid"])] = int(found["rank"])
    return known


def _hosts_of_sources(log: Log) -> dict[int, str]:
    """Files that hold lines of one host alone."""
    hosts: dict[int, set[str]] = defaultdict(set)
    told: dict[int, set[str]] = defaultdict(set)
    for each in log.spoken:
        if each.who.host is not None:
            hosts[each.source].add(each.who.host)
    for line in dict.fromkeys((*log.heads, *log.lines, *log.tails)):
        if line.source not in hosts and log.sources[line.source].lines <= QUOTED_LINES:
            told[line.source] |= {_told_host(found) for found in _TOLD_HOST.finditer(line.text[-MOST_TOLD:])}
    hosts |= {source: found for source, found in told.items() if source not in hosts}
    return {source: found.pop() for source, found in hosts.items() if len(found) == 1}


def _told_host(found: re.Match[str]) -> str:
    name: str = found["host"] or found["slurm"] or found["prose"]
    return name.partition(".")[0]


def _is_first_node(log: Log) -> bool:
    """Whether all was printed on one host, and neither its name, its node rank nor a rank shows a node before it."""
    whos = {each.who for each in (*log.spoken, *log.tails)}
    hosts = {who.host for who in whos} - {None}
    nodes = {source.who.node_rank for source in log.sources} | {who.node_rank for who in whos}
    if len(hosts) > 1 or len(nodes - {None}) > 1 or any(nodes - {None, 0}):
        return False
    if any(_LATER_NODES.search(host or "") for host in hosts):
        return False
    return all(who.rank in (None, who.local_rank) for who in whos if who.local_rank is not None)


def _devices_are_ranks(log: Log) -> bool:
    """Whether the log shows that NCCL's devices count the ranks: each process has its own, and ranks or the world size agree.

    Either the ranks that are known of processes with a device, or a world that has no more ranks than devices were seen.
    """
    whos = {each.who for each in (*log.spoken, *log.tails) if each.who.device is not None}
    processes = {(who.pid, who.device) for who in whos}
    devices = {device for _, device in processes}
    if len(processes) > len(devices):
        return False
    pairs = [(who.rank, who.device) for who in whos if who.rank is not None]
    pairs += [
        (int(found["rank"]), line.who.device)
        for line, found in context_lines(log, "communicator")
        if line.who.device is not None
    ]
    world = world_size_of(log)
    if pairs:
        return all(rank == device for rank, device in pairs)
    return world is not None and devices == set(range(world))


def _ranks_of_sources(log: Log) -> Iterator[tuple[int, int]]:
    """Files that hold lines of one rank alone, which no other file holds, where there are several."""
    ranks: dict[int, set[int]] = defaultdict(set)
    shared: set[int] = set()
    for each in log.spoken:
        if each.who.rank is not None:
            ranks[each.source].add(each.who.rank)
        if isinstance(each, Exit) or is_of_launcher(each):
            shared.add(each.source)
    owners: dict[int, list[int]] = defaultdict(list)
    for source, found in ranks.items():
        if len(found) == 1:
            owners[next(iter(found))].append(source)
    for rank, sources in owners.items():
        if len(sources) == 1 and sources[0] not in shared and len(log.sources) > 1:
            yield sources[0], rank


def _tasks_are_nodes(log: Log) -> bool:
    """Whether srun's numbers count launchers: an agent prints under one, or one number has lines of several ranks."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for each in log.spoken:
        if each.who.task is None:
            continue
        if is_of_launcher(each):
            return True
        if each.who.rank is not None:
            ranks[each.who.task].add(each.who.rank)
    return any(len(found) > 1 or found != {task} for task, found in ranks.items())


def is_of_launcher(each: LogLine | Traceback | Exit) -> bool:
    """Whether a launcher says it of itself or of its workers."""
    return each.by == "torchrun" if isinstance(each, Exit) else isinstance(each, LogLine) and AGENT in each.text
