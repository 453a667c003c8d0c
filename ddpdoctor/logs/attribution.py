"""Which rank a line belongs to, where its own prefix does not say: from file names, process ids, summaries and neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from ddpdoctor.facts.log import Exit, Log, LogLine, LogSource, Traceback, Who
from ddpdoctor.logs.context_attribution import with_context
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import CHAIN_LINES, MESSAGE_LINES, SUMMARY_ROW_LINES, SUMMARY_TRACEBACK_LINES
from ddpdoctor.logs.known_processes import AGENT, KnownProcesses, is_of_launcher, known_processes, world_size_of
from ddpdoctor.logs.later_frames import is_ahead, with_frames
from ddpdoctor.logs.launcher_exits import SIGNALS, exits_in_lines
from ddpdoctor.logs.line_prefix import short_host

__all__ = ["attributed"]

Spoken = TypeVar("Spoken", LogLine, Traceback, Exit)


OF_SLURM = ("slurmstepd", "srun: ")
_SELF = re.compile(
    r"\W{0,2}[Rr]ank (?P<rank>\d{1,6})\W{0,2}: (?!\[?[Rr]anks? \d)|Timed out initializing .{0,60} on rank: (?P<waiting>\d{1,6})"
)
_SPAWNED = re.compile(r"-- Process (?P<index>\d{1,6}) terminated with ")
"""What the parent of mp.spawn says of the child that failed: its index is the local rank."""
_OF_POD = re.compile(
    r"kubectl (?:-n \S+ |--namespace[= ]\S+ )?logs (?:-\S+ )*(?:pods?/)?(?P<pod>[a-z0-9][a-z0-9-]*-[a-z0-9-]+)(?: |$)"
)
"""The command above what a pod printed."""
_HOST = re.compile(r"\b(?:node|host): (?P<host>[A-Za-z0-9][\w.-]*)")
_DEVICE = re.compile(r"\b[Dd]evice: (?:cuda:)?(?P<device>\d{1,2})\b")
"""How an exception's message begins that says itself who raised it, and what else it says of that one."""


def attributed(log: Log) -> Log:
    """The log with every line, traceback and exit given to its rank and host as far as these are known."""
    log = replace(log, sources=tuple(_of_pod(log, index) for index in range(len(log.sources))))
    log = with_context(replace(log, exits=(*log.exits, *exits_in_lines(log.lines, log.exits))))
    named = replace(
        log,
        lines=tuple(_with_source(log, each) for each in log.lines if not _is_code(log, each)),
        tracebacks=tuple(_as_message_says(_with_source(log, each)) for each in log.tracebacks),
        unfinished=tuple(_with_source(log, each) for each in log.unfinished),
        exits=tuple(_with_source(log, each) for each in log.exits),
        tails=tuple(_with_source(log, each) for each in log.tails),
    )
    known = known_processes(named)
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


def _is_code(log: Log, line: LogLine) -> bool:
    """Whether the line is source code that a traceback quotes: no process printed it as a message."""
    return line.text.startswith("    ") and any(
        each.source == line.source and each.begin < line.number < each.number for each in log.tracebacks
    )


def _with_restart(log: Log) -> Iterator[LogSource]:
    first: dict[int, int] = {}
    for line, _ in context_lines(log, "restart"):
        first.setdefault(line.source, line.number)
    for index, source in enumerate(log.sources):
        yield replace(source, restarted_at=first.get(index))


def _of_pod(log: Log, index: int) -> LogSource:
    """The source, with the pod that one `kubectl logs` in its first lines names: what follows was printed there."""
    source = log.sources[index]
    commands = [line.text for line in log.heads if line.source == index and "kubectl" in line.text]
    found = _OF_POD.search(commands[0]) if len(commands) == 1 and commands[0].count("kubectl") == 1 else None
    if found is None or source.who.host is not None:
        return source
    return replace(source, who=replace(source.who, host=found["pod"]))


def _with_source(log: Log, each: Spoken) -> Spoken:
    own, of_file = each.who, log.sources[each.source].who
    if of_file == Who():
        return each
    return replace(each, who=_merged(own, of_file))


def _as_message_says(each: Traceback) -> Traceback:
    """A traceback whose message says which rank raised it, on which node and device."""
    spawned = _SPAWNED.match(each.message)
    if spawned is not None and each.who.rank is None and each.who.local_rank is None:
        return replace(each, who=replace(each.who, local_rank=int(spawned["index"])))
    named = _SELF.match(each.message)
    if named is None or each.who.rank not in (None, int(named["rank"] or named["waiting"])):
        return each
    host, device = _HOST.search(each.message), _DEVICE.search(each.message)
    return replace(
        each,
        who=replace(
            each.who,
            rank=int(named["rank"] or named["waiting"]),
            host=each.who.host or (short_host(host["host"]) if host else None),
            device=int(device["device"]) if device and each.who.device is None else each.who.device,
        ),
    )


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


def _given(each: Spoken, known: KnownProcesses) -> Spoken:
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
    if rank is None and not is_of_launcher(each):
        rank = known.rank_of_source.get(each.source)
    if who.task is not None and not known.tasks_are_nodes and rank is None:
        rank = who.task
    if who.task is not None and known.tasks_are_nodes and node_rank is None:
        node_rank = who.task
    host = who.host or known.host_of_source.get(each.source)
    if (rank, node_rank, host) == (who.rank, who.node_rank, who.host):
        return each
    return replace(each, who=replace(who, rank=rank, node_rank=node_rank, host=host))


def _of_row(each: Traceback, exits: tuple[Exit, ...]) -> Traceback:
    """A traceback that a row of torchrun's summary holds is of that row's worker, which has recorded it."""
    if each.who.rank is not None or _is_launchers(each):
        return each
    rows = [e for e in exits if e.source == each.source and 0 < each.begin - e.number <= SUMMARY_ROW_LINES]
    own = [e for e in rows if e.who.rank is not None and e.who.task == each.who.task]
    own = [e for e in own if e.who.host == each.who.host] or [
        e for e in own if e.number + SUMMARY_TRACEBACK_LINES == each.begin
    ]
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
        if len(failed) > len(chains) and len(heads) == 1:  # the launcher says which worker failed first
            failed = [e for e in failed if e.is_first] if len(chains) == 1 else failed
        if len(failed) <= len(chains) and len(heads) <= 1:
            for chain, ended in zip(chains, failed, strict=False):  # those that the launcher ended raised it as well
                for index in chain:
                    given[index] = replace(given[index], who=_merged(ended.who, given[index].who))
    return tuple(given)


def _chains(tracebacks: tuple[Traceback, ...], indices: Iterable[int]) -> list[list[int]]:
    """The tracebacks at these indices; those that were raised while another was handled with that one."""
    chains: list[list[int]] = []
    for i in indices:
        last = tracebacks[chains[-1][-1]] if chains else None
        if last is not None and tracebacks[i].is_chained and 0 < tracebacks[i].begin - last.number <= CHAIN_LINES:
            chains[-1].append(i)
        else:
            chains.append([i])
    return chains


def _is_own(each: Exit) -> bool:
    """Whether a Python exception may have ended the process: C++ turns one that leaves a destructor into an abort."""
    return each.code > 0 or each.code == -SIGNALS["SIGABRT"]


def _with_traceback(line: LogLine, tracebacks: tuple[Traceback, ...]) -> LogLine:
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


def _with_unfinished(line: LogLine, unfinished: tuple[Traceback, ...]) -> LogLine:
    """A line without a rank directly above a traceback that it ends: some write the exception before its traceback."""
    if line.who != Who():
        return line
    return next((replace(line, who=each.who) for each in unfinished if is_ahead(line, each)), line)


def _once(exits: Iterable[Exit]) -> list[Exit]:
    """Each worker's exit once: the root cause stands in torchrun's summary apart from the others."""
    return list({(each.source, each.who.rank, each.who.pid): each for each in exits}.values())


def _is_launchers(traceback: Traceback) -> bool:
    return traceback.is_summary or traceback.exception.endswith("SignalException")
