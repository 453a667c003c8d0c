"""Which rank a line belongs to, where its own prefix does not say: from file names, process ids, summaries and neighbours."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ddpdoctor.facts.log.endings import SIGNALS, told_in_lines
from ddpdoctor.facts.log.frames import CHAINED_LINES, is_ahead, with_frames
from ddpdoctor.facts.log.marks import marked
from ddpdoctor.facts.log.neighbours import with_neighbours
from ddpdoctor.facts.log.record import Exit, Line, Log, Source, Traceback, Who

__all__ = ["MESSAGE_LINES", "attributed", "world_size_of"]

Spoken = TypeVar("Spoken", Line, Traceback, Exit)

MESSAGE_LINES = 5
"""So many lines an exception's message may have: NCCL's has four."""

ROW_LINES = 9
"""From `rank` to `traceback` in a row of torchrun's summary are three lines, more where nodes write at once."""

AGENT = "torch/distributed/elastic"
OF_SLURM = ("slurmstepd", "srun: ")
_LATER_NODES = re.compile(r"(?:worker|node|slave|replica|machine)-?0*[1-9]\d*$", re.IGNORECASE)
"""Names of nodes that need not be the first."""


@dataclass(slots=True)
class _Known:
    """What the log as a whole says of its processes."""

    by_pid: dict[tuple[str | None, int], int] = field(default_factory=dict)
    by_actor: dict[int, int] = field(default_factory=dict)
    by_local: dict[tuple[int, int], int] = field(default_factory=dict)
    rank_of_source: dict[int, int] = field(default_factory=dict)
    host_of_source: dict[int, str] = field(default_factory=dict)
    is_first_node: bool = True
    """Whether nothing speaks against one node, the first: its local ranks are the ranks then."""
    devices_are_ranks: bool = False
    tasks_are_nodes: bool = False


def attributed(log: Log) -> Log:
    """The log with every line, traceback and exit given to its rank and host as far as these are known."""
    log = with_neighbours(replace(log, exits=(*log.exits, *told_in_lines(log.lines, log.exits))))
    named = replace(
        log,
        lines=tuple(_with_source(log, each) for each in log.lines if not _is_code(log, each)),
        tracebacks=tuple(_with_source(log, each) for each in log.tracebacks),
        unfinished=tuple(_with_source(log, each) for each in log.unfinished),
        exits=tuple(_with_source(log, each) for each in log.exits),
        tails=tuple(_with_source(log, each) for each in log.tails),
    )
    known = _known(named)
    lines = tuple(_given(each, known) for each in named.lines)
    tracebacks = tuple(_given(each, known) for each in named.tracebacks)
    unfinished = tuple(_given(each, known) for each in named.unfinished)
    exits = tuple(_given(each, known) for each in named.exits)
    tails = tuple(_given(each, known) for each in named.tails)
    tracebacks = with_frames(tracebacks, unfinished)
    tracebacks = _by_summary(tuple(_of_row(each, exits) for each in tracebacks), exits)
    lines = tuple(_with_traceback(each, tracebacks) for each in lines)
    lines = tuple(_with_unfinished(each, unfinished) for each in lines)
    found = replace(named, lines=lines, tracebacks=tracebacks, unfinished=unfinished, exits=exits, tails=tails)
    return replace(found, world_size=world_size_of(found), sources=tuple(_with_restart(found)))


def _is_code(log: Log, line: Line) -> bool:
    """Whether a traceback quotes this line of the source: what stands there was not said by anybody."""
    return line.text.startswith("    ") and any(
        each.source == line.source and each.begin < line.number < each.number for each in log.tracebacks
    )


def _with_restart(log: Log) -> Iterator[Source]:
    first: dict[int, int] = {}
    for line, _ in marked(log, "restart"):
        first.setdefault(line.source, line.number)
    for index, source in enumerate(log.sources):
        yield replace(source, restarted_at=first.get(index))


def world_size_of(log: Log) -> int | None:
    """The number of ranks that the lines speak of, None when none does."""
    sure = [int(found["ranks"]) for _, found in marked(log, "communicator")]
    sure += [int(found["members"]) for _, found in marked(log, "member")]
    sure += [int(found["world"]) for _, found in marked(log, "barrier")]
    sure += [int(found["world"]) for _, found in marked(log, "worlds")]
    return max(sure, default=None)


def _with_source(log: Log, each: Spoken) -> Spoken:
    own, of_file = each.who, log.sources[each.source].who
    if of_file == Who():
        return each
    return replace(each, who=_merged(own, of_file))


def _merged(own: Who, other: Who) -> Who:
    return Who(
        own.rank if own.rank is not None else other.rank,
        own.local_rank if own.local_rank is not None else other.local_rank,
        own.node_rank if own.node_rank is not None else other.node_rank,
        own.host or other.host,
        own.pid if own.pid is not None else other.pid,
        own.task,
        own.device,
    )


def _known(log: Log) -> _Known:
    known = _Known()
    known.is_first_node = _is_first_node(log)
    known.devices_are_ranks = known.is_first_node and _devices_are_ranks(log)
    for each in log.spoken:
        who = each.who
        if who.rank is None:
            continue
        if who.pid is not None:
            known.by_pid[who.host, who.pid] = who.rank
            known.by_pid.setdefault((None, who.pid), who.rank)
        if who.local_rank is not None:
            known.by_local[each.source, who.local_rank] = who.rank
    for line, found in marked(log, "communicator"):
        if line.who.pid is not None and line.who.rank is None:
            known.by_pid.setdefault((line.who.host, line.who.pid), int(found["rank"]))
    for _, found in marked(log, "ray_worker"):
        known.by_pid[found["host"], int(found["pid"])] = int(found["rank"])
        known.by_actor[int(found["pid"])] = int(found["rank"])
    known.rank_of_source = dict(_ranks_of_sources(log))
    hosts_of: dict[int, set[str]] = defaultdict(set)
    for each in log.spoken:
        if each.who.host is not None:
            hosts_of[each.source].add(each.who.host)
    known.host_of_source = {source: found.pop() for source, found in hosts_of.items() if len(found) == 1}
    known.tasks_are_nodes = _tasks_are_nodes(log)
    return known


def _is_first_node(log: Log) -> bool:
    """Whether all was printed on one host, and nothing tells a node before it: its name, its rank, a rank of its own."""
    whos = {each.who for each in (*log.spoken, *log.tails)}
    hosts = {who.host for who in whos} - {None}
    nodes = {source.who.node_rank for source in log.sources} | {who.node_rank for who in whos}
    if len(hosts) > 1 or len(nodes - {None}) > 1 or any(nodes - {None, 0}):
        return False
    if any(_LATER_NODES.search(host or "") for host in hosts):
        return False
    return all(who.rank in (None, who.local_rank) for who in whos if who.local_rank is not None)


def _devices_are_ranks(log: Log) -> bool:
    """Whether the log shows that NCCL's devices count the ranks: each process has its own, and something tells the same.

    Either the ranks that are known of processes with a device, or a world that has no more ranks than devices were seen.
    """
    whos = {each.who for each in (*log.spoken, *log.tails) if each.who.device is not None}
    processes = {(who.pid, who.device) for who in whos}
    devices = {device for _, device in processes}
    if len(processes) > len(devices):
        return False
    told = [(who.rank, who.device) for who in whos if who.rank is not None]
    told += [
        (int(found["rank"]), line.who.device)
        for line, found in marked(log, "communicator")
        if line.who.device is not None
    ]
    world = world_size_of(log)
    if told:
        return all(rank == device for rank, device in told)
    return world is not None and devices == set(range(world))


def _ranks_of_sources(log: Log) -> Iterator[tuple[int, int]]:
    """Files that hold lines of one rank alone, which no other file holds, where there are several."""
    ranks: dict[int, set[int]] = defaultdict(set)
    shared: set[int] = set()
    for each in log.spoken:
        if each.who.rank is not None:
            ranks[each.source].add(each.who.rank)
        if isinstance(each, Exit) or _is_agents(each):
            shared.add(each.source)
    owners: dict[int, list[int]] = defaultdict(list)
    for source, found in ranks.items():
        if len(found) == 1:
            owners[next(iter(found))].append(source)
    for rank, sources in owners.items():
        if len(sources) == 1 and sources[0] not in shared and len(log.sources) > 1:
            yield sources[0], rank


def _tasks_are_nodes(log: Log) -> bool:
    """Whether srun's numbers count launchers: an agent speaks under one, or one number speaks for several ranks."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for each in log.spoken:
        if each.who.task is None:
            continue
        if _is_agents(each):
            return True
        if each.who.rank is not None:
            ranks[each.who.task].add(each.who.rank)
    return any(len(found) > 1 or found != {task} for task, found in ranks.items())


def _given(each: Spoken, known: _Known) -> Spoken:
    who = each.who
    rank, node_rank = who.rank, who.node_rank
    if rank is None and who.pid is not None:
        rank = known.by_pid.get((who.host, who.pid), known.by_actor.get(who.pid))
    if rank is None and who.local_rank is not None:
        rank = known.by_local.get((each.source, who.local_rank))
        if rank is None and known.is_first_node:
            rank = who.local_rank
    if rank is None and who.device is not None and known.devices_are_ranks:
        rank = who.device
    if rank is None and not _is_agents(each):
        rank = known.rank_of_source.get(each.source)
    if who.task is not None and not known.tasks_are_nodes and rank is None:
        rank = who.task
    if who.task is not None and known.tasks_are_nodes and node_rank is None:
        node_rank = who.task
    host = who.host or known.host_of_source.get(each.source)
    if (rank, node_rank, host) == (who.rank, who.node_rank, who.host):
        return each
    return replace(each, who=replace(who, rank=rank, node_rank=node_rank, host=host))


def _is_agents(each: Line | Traceback | Exit) -> bool:
    """Whether a launcher says it of itself or of its workers."""
    return each.by == "torchrun" if isinstance(each, Exit) else isinstance(each, Line) and AGENT in each.text


def _of_row(each: Traceback, exits: tuple[Exit, ...]) -> Traceback:
    """A traceback that a row of torchrun's summary holds is of that row's worker, which has recorded it."""
    if each.who.rank is not None or _is_launchers(each):
        return each
    rows = [e for e in exits if e.source == each.source and 0 < each.begin - e.number <= ROW_LINES]
    own = [e for e in rows if e.who.rank is not None and e.who.task == each.who.task]
    own = [e for e in own if e.who.host == each.who.host] or [e for e in own if e.number + 3 == each.begin]
    return replace(each, who=_merged(each.who, own[-1].who)) if own else each


def _by_summary(tracebacks: tuple[Traceback, ...], exits: tuple[Exit, ...]) -> tuple[Traceback, ...]:
    """Tracebacks without a rank belong to the workers that the launcher's summary lists with an exit code of their own."""
    given = list(tracebacks)
    for source in {each.source for each in exits}:
        known = {t.who.rank for t in tracebacks if t.source == source}
        failed = [e for e in _once(exits) if e.source == source and _is_own(e) and e.who.rank not in known]
        lost = [
            i for i, t in enumerate(tracebacks) if t.source == source and t.who.rank is None and not _is_launchers(t)
        ]
        chains = _chains(tracebacks, lost)
        heads = {(tracebacks[chain[0]].exception, tracebacks[chain[0]].message) for chain in chains}
        if len(failed) == len(chains) and len(heads) <= 1:
            for chain, ended in zip(chains, failed, strict=True):
                for index in chain:
                    given[index] = replace(given[index], who=_merged(ended.who, given[index].who))
    return tuple(given)


def _chains(tracebacks: tuple[Traceback, ...], indices: Iterable[int]) -> list[list[int]]:
    """The tracebacks at these indices; those that were raised while another was handled with that one."""
    chains: list[list[int]] = []
    for i in indices:
        if chains and 0 < tracebacks[i].begin - tracebacks[chains[-1][-1]].number <= CHAINED_LINES:
            chains[-1].append(i)
        else:
            chains.append([i])
    return chains


def _is_own(each: Exit) -> bool:
    """Whether a Python exception may have ended the process: C++ turns one that leaves a destructor into an abort."""
    return each.code > 0 or each.code == -SIGNALS["SIGABRT"]


def _with_traceback(line: Line, tracebacks: tuple[Traceback, ...]) -> Line:
    """A line without a rank that belongs to a traceback whose rank is known by now."""
    if line.who.rank is not None:
        return line
    near = [t for t in tracebacks if t.source == line.source and 0 <= line.number - t.number <= MESSAGE_LINES]
    if (
        AGENT in line.text
        or line.text.startswith(OF_SLURM)
        or not near
        or near[-1].who.rank is None
        or line.who.host not in (None, near[-1].who.host)
    ):
        return line
    return replace(line, who=_merged(line.who, near[-1].who))


def _with_unfinished(line: Line, unfinished: tuple[Traceback, ...]) -> Line:
    """A line without a rank directly above a traceback that it ends: some write the exception before its traceback."""
    if line.who != Who():
        return line
    return next((replace(line, who=each.who) for each in unfinished if is_ahead(line, each)), line)


def _once(exits: Iterable[Exit]) -> list[Exit]:
    """Each worker's exit once: the root cause stands in torchrun's summary apart from the others."""
    return list({(each.source, each.who.rank, each.who.pid): each for each in exits}.values())


def _is_launchers(traceback: Traceback) -> bool:
    return traceback.exception.rpartition(".")[2] in ("ChildFailedError", "CalledProcessError", "SignalException")
