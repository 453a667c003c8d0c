"""LOG500, PROBE005, PROBE006: processes that ended with an exception that no other rule explains."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum

from ddpdoctor.facts.log import Log, LogLine, Traceback
from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Role, Severity, Where
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.distances import CHAIN_LINES, OWN_MESSAGE_LINES, QUOTED_LINES
from ddpdoctor.logs.exception_kinds import is_consequence, is_of_launcher, is_pointer, is_wrapper, translates
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.interruption import INTERRUPT
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.traceback_of_line import OUTSIDERS, repeats
from ddpdoctor.logs.tracebacks.quoted import quoted_in
from ddpdoctor.rules import Cause, cause
from ddpdoctor.rules.host.host002_shm_too_small_for_dataloader import shm_too_small_for_dataloader
from ddpdoctor.rules.host.host009_memory_limit_low import memory_limit_low
from ddpdoctor.rules.host.host012_013_502_hosts_differ import on_some_nodes_only
from ddpdoctor.rules.log.exception_fixes import fix_of
from ddpdoctor.rules.log.headlines import (
    LONGEST_EXCEPTION,
    LONGEST_HEADLINE,
    clipped,
    headline,
    names_of,
    place_name,
    who,
)
from ddpdoctor.rules.log.log011_020_device_errors import ASSERTED
from ddpdoctor.rules.log.log012_to_014_out_of_memory import host_out_of_memory
from ddpdoctor.rules.log.log015_021_killed import scheduler_ended_job
from ddpdoctor.rules.log.log501_worker_ended_without_traceback import (
    CANCELLED,
    CRASHED,
    PEERS_BEFORE,
    PEERS_OF_A_GROUP,
)
from ddpdoctor.rules.log.missing_files import is_missing_file, is_removed
from ddpdoctor.rules.log.python_failures import PythonFailure, failure_of
from ddpdoctor.rules.log.signatures import explained, shortened, softly_explained
from ddpdoctor.rules.script.script059_to_061_checkpoints import not_written_yet

__all__ = ["Raised", "python_failures", "raised_finding", "traceback_groups"]

CHILD_GONE = re.compile(
    r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly|subprocesses has abruptly died"
    r"|process in the process pool was terminated abruptly"
)
OF_CUDA = re.compile(r"CUDA error|CUBLAS_STATUS_|CUDNN_STATUS_|cuda runtime error")
NODES_TAKEN = (r"will be terminated soon \(reason: ", r"its node has died")
WHY_GONE = (
    "Either it was OOM-killed (LOG014, HOST009), /dev/shm is too small (HOST002), or it crashed: run "
    "`sudo dmesg -T | grep -i 'killed process'; df -h /dev/shm` on that node to decide"
)
TERMINATED = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Terminated")
WHY_TERMINATED = (
    "Either the launcher or the scheduler ended it because another rank failed or the time limit was reached (LOG015), a memory "
    "guard such as earlyoom did (LOG014), or a person did: run `sacct -j JOB --format=JobID,State,ExitCode` and "
    "`journalctl -u earlyoom -u systemd-oomd` on that node to decide"
)
CANDIDATES: dict[str, tuple[Cause, ...]] = {
    WHY_GONE: (host_out_of_memory, memory_limit_low, shm_too_small_for_dataloader),
    WHY_TERMINATED: (scheduler_ended_job, host_out_of_memory),
}
"""The causes that these texts name."""
CUT = "Unknown which exception: the log is cut off before its name; run `ddpdoctor triage` on the complete output"
KILLED = "Killed"
"""The last line that a shell prints about a program ended by SIGKILL; a server ends itself in this way after an exception."""
OF_BACKEND = re.compile(r"NCCL|nccl|DistBackendError|CUDA|c10|[Pp]rocess ?[Gg]roup")
"""Exceptions about which NCCL's own lines say more."""
OF_NCCL = re.compile(r"\bNCCL (?:INFO|WARN)\b")
_ERRNO = re.compile(r"^\[Errno \d+\] ")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, slots=True)
class _Group:
    """The same exception at the same place, with the ranks that raised it."""

    first: Traceback
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    count: int


@functools.lru_cache(4)
def traceback_groups(log: Log) -> tuple[_Group, ...]:
    """Exceptions that ended a process and that no other rule explains, in the order of the log. Several rules ask for them."""
    crashes = {(line.source, line.number, line.text) for line in matching_lines(log, CRASHED + CANCELLED)}
    lines = _Explained(
        line
        for line in explained(log, "cause", "umbrella", "consequence")
        if (line.source, line.number, line.text) not in crashes and not OUTSIDERS.match(line.text)
    )
    groups: dict[tuple[str, str, object], list[Traceback]] = {}
    hidden = _hidden_by_chains(log)
    for each in log.tracebacks:
        name = each.exception.rpartition(".")[2]
        if (
            is_consequence(each)
            or is_pointer(each)
            or _is_explained(each, lines)
            or history_of(log).survived(each)
            or _has_file_cause(log, each)
        ):
            continue
        if each in hidden or _is_of_kernel(log, each) or _lost_nodes(log, each):
            continue
        groups.setdefault((name, _NUMBERS.sub("#", each.message)[:80], each.place), []).append(each)
    if any(not is_wrapper(t) for t in log.tracebacks if not is_consequence(t)) or _is_shown(log):
        groups = {key: group for key, group in groups.items() if not is_wrapper(group[0])}
    found = [_with_ranks_below(log, _group(group)) for group in groups.values()]
    return tuple(_without_repetitions(found))


def _with_ranks_below(log: Log, group: _Group) -> _Group:
    """With the rank whose traceback stands below, where the group is an exception that somebody quoted above it."""
    first = group.first
    if group.ranks or not first.is_line or not history_of(log).is_excerpt:
        return group
    below = [t for t in (*log.tracebacks, *log.unfinished) if t.source == first.source and t.begin > first.number]
    alike = (t.who.rank for t in below if not t.exception or t.exception == first.exception)
    ranks = {rank for rank in alike if rank is not None}
    return replace(group, ranks=tuple(ranks)) if len(ranks) == 1 else group


def _is_of_kernel(log: Log, each: Traceback) -> bool:
    """Whether CUDA raised it after an assertion in a kernel, which LOG011 reports."""
    asserted = matching_lines(log, (ASSERTED,)) if OF_CUDA.search(each.message) else []
    return any(
        line.source == each.source and line.number < each.number and line.who.may_be(each.who) for line in asserted
    )


def _lost_nodes(log: Log, each: Traceback) -> bool:
    """Whether Ray could not place workers after nodes were removed, which LOG015 reports."""
    lost = matching_lines(log, NODES_TAKEN) if "placement group" in each.message else []
    return any(line.source == each.source and line.number < each.number for line in lost)


def _without_repetitions(groups: list[_Group]) -> list[_Group]:
    """Without those that a logger or a parent process repeats without the rank that raised them."""
    ranked = {(g.first.exception, g.first.message) for g in groups if g.ranks}
    return [g for g in groups if g.ranks or (g.first.exception, g.first.message) not in ranked]


class _Explained:
    """The lines that other rules explain, by their places: a log may have 20,000 of them, and 2,000 tracebacks."""

    def __init__(self, lines: Iterable[LogLine]) -> None:
        self.by_place: dict[tuple[int, int], list[LogLine]] = {}
        self.repeated: list[LogLine] = []
        for line in lines:
            self.by_place.setdefault((line.source, line.number), []).append(line)
            if line.count > 1:
                self.repeated.append(line)


def _is_explained(each: Traceback, lines: _Explained) -> bool:
    near = [line for number in _own_lines(each) for line in lines.by_place.get((each.source, number), ())]
    if not OF_BACKEND.search(f"{each.exception}: {each.message}"):
        near = [line for line in near if not OF_NCCL.search(line.text)]  # what NCCL says after a rank ended
    return any(line.who.may_be(each.who) for line in near if line.text != KILLED) or any(
        repeats(each, line) for line in lines.repeated
    )


def _own_lines(each: Traceback) -> range:
    """The lines that an exception's message may take."""
    return range(each.number, each.number + OWN_MESSAGE_LINES)


def _has_file_cause(log: Log, each: Traceback) -> bool:
    """Whether HOST013, SCRIPT061, or SCRIPT063 reports the missing file."""
    if is_removed(each):
        return True
    return is_missing_file(each) and (any(on_some_nodes_only(log) or ()) or any(not_written_yet(log) or ()))


def _follows(each: Traceback, other: Traceback) -> bool:
    """Whether it was raised while the other was handled: the first one of a chain is the cause."""
    return (
        (each.source, each.who) == (other.source, other.who)
        and each.is_chained
        and 0 < each.begin - other.number <= CHAIN_LINES
        and not (is_wrapper(other) or other.is_summary)
    )


def _hidden_by_chains(log: Log) -> set[Traceback]:
    """Those of chains that others of their chain explain: the first one counts, or the last one if it explains the others."""
    chains: list[list[Traceback]] = []
    for each in log.tracebacks:
        chain = next((c for c in reversed(chains) if each.is_chained and any(_follows(each, t) for t in c)), None)
        if chain is None:
            chains.append([each])
        else:
            chain.append(each)
    hidden: set[Traceback] = set()
    for chain in chains:
        kept = chain[-1] if len(chain) > 1 and translates(chain[-1], chain[:-1]) else chain[0]
        hidden |= {each for each in chain if each is not kept}
    return hidden


def _is_shown(log: Log) -> bool:
    """Whether a line shows the error of the process that a parent only reports."""
    soft = softly_explained(log)
    crashes = set(matching_lines(log, CRASHED + CANCELLED))
    return any(
        (line.source, line.number) not in soft and line not in crashes and not history_of(log).survived(line)
        for line in explained(log, "cause", "umbrella")
    )


def _group(group: list[Traceback]) -> _Group:
    ranks = sorted({t.who.rank for t in group if t.who.rank is not None})
    hosts = sorted({t.who.host for t in group if t.who.host is not None})
    return _Group(group[0], tuple(ranks), tuple(hosts), len(group))


def _all_ranks(log: Log) -> set[int]:
    ranks = {process.rank for process in history_of(log).processes}
    return {rank for rank in ranks if rank is not None} | set(range(log.world_size or 0))


class Raised(Enum):
    """When an exception ended its process: each member is reported by another cause."""

    BEFORE_JOINING = "before it joined the process group"
    AFTER_JOINING = "after it joined the process group"
    ALONE = "alone"
    """No other rank is known, or no line shows whether this one had joined."""


def _when(log: Log, group: _Group) -> Raised:
    """Whether the ranks of the group had joined the others, if there are others."""
    others = _all_ranks(log) - set(group.ranks) - {each.who.rank for each in log.unfinished}  # these raise as well
    peers = [line for line in matching_lines(log, PEERS_OF_A_GROUP) if _is_others(line, group)]
    waited = [line for line in matching_lines(log, PEERS_BEFORE) if _is_others(line, group)]
    if peers and (group.first.has_joined or not waited):
        return Raised.AFTER_JOINING
    if waited:
        return Raised.BEFORE_JOINING
    return Raised.AFTER_JOINING if others and group.ranks and group.first.has_joined else Raised.ALONE


def _is_others(line: LogLine, group: _Group) -> bool:
    """Whether another process printed this line, judged by rank, host, and file."""
    if line.who.rank is not None and group.ranks:
        return line.who.rank not in group.ranks
    if line.who.host is not None and group.hosts:
        return line.who.host not in group.hosts
    return line.source != group.first.source or (line.who.rank is None and bool(group.ranks))


def raised_finding(log: Log, when: Raised) -> Iterator[Finding]:
    """The uncaught exceptions that were raised at this time."""
    for group in traceback_groups(log):
        if failure_of(group.first) is None and _when(log, group) is when:
            yield _finding(log, group)


def python_failures(log: Log, kind: PythonFailure) -> Iterator[Finding]:
    """The uncaught exceptions of this kind, which have a cause of their own."""
    for group in traceback_groups(log):
        if failure_of(group.first) is kind:
            yield _finding(log, group)


def _finding(log: Log, group: _Group, undetermined: str = "") -> Finding:
    first, place = group.first, group.first.place
    raised = (first.exception or "an exception") + (f": {first.message}" if first.message else "")
    at = f" at {place_name(place.file, place.line)}" if place is not None else ""
    why = WHY_GONE if CHILD_GONE.search(first.message) else ""
    why = WHY_TERMINATED if TERMINATED.search(first.message) else why
    own = None if why or undetermined else fix_of(first)
    name = first.exception.rpartition(".")[2] or "an exception"
    speaker = who(group.ranks, group.hosts)
    room = min(LONGEST_EXCEPTION, LONGEST_HEADLINE - len(f"{speaker}: {at}"))
    message = _ERRNO.sub("", first.message)
    shown = clipped(f"{name}: {message}" if message else name, room).removesuffix(".")
    return Finding(
        headline(speaker, f"{shown}{at}"),
        (Evidence(log.place(first.source, first.number), shortened(raised), "no exception"),),
        fix=_fix(log, group, "" if own is None else own.text),
        where=Where(
            host=group.hosts[0] if len(group.hosts) == 1 else None,
            node_rank=first.who.node_rank if group.count == 1 else None,
            rank=group.ranks[0] if len(group.ranks) == 1 else None,
            local_rank=first.who.local_rank if group.count == 1 else None,
            file=log.sources[first.source].name if place is None else place.file,
            line=first.number if place is None else place.line,
        ),
        ranks=group.ranks,
        quote=shortened(raised),
        fix_command=own.command if own is not None else None,
        undetermined=why or undetermined,
        certainty=Certainty.CANDIDATES if why or undetermined else Certainty.CERTAIN,
        candidates=tuple(each.rule.code for each in CANDIDATES.get(why, ())),
    )


def _fix(log: Log, group: _Group, own: str) -> str:
    """What to do after this exception, where its traceback is, and what to compare if only some ranks raised it."""
    first, place = group.first, group.first.place
    name = log.sources[first.source].name
    lines = f"{first.begin}-{first.number}" if 0 < first.begin < first.number else str(first.number)
    action = own or ("Correct the script" if place is None else f"Correct {place.file}:{place.line}")
    fix = f"{action}; full traceback: {name}:{lines}."
    if group.ranks and _all_ranks(log) - set(group.ranks):
        ranks = names_of(group.ranks, ())
        fix += f" Compare data, files, and arguments with those of another rank: only {ranks} raised it."
    return fix


@cause("LOG500", "uncaught-exception", Severity.ERROR, stage=CausalStage.DEATH)
def uncaught_exception(log: Log) -> Iterator[Finding]:
    """The training script ended with an exception.

    ## Why it matters
    The launcher's summary only shows `exitcode : 1`; if several ranks write to one log, the traceback is far above its end.
    ddpdoctor names the innermost frame of the job's own code.

    ## Fix
    Correct the script at the last frame of its own code. ddpdoctor names it, the lines of the log with the full traceback,
    and the command to run after a missing module, file, key, or permission.

    ## Example

        Traceback (most recent call last):
          File "/home/u/train.py", line 3, in <module>
            import yaml
        ModuleNotFoundError: No module named 'yaml'

        # before: the module was installed on the login node only
        torchrun --nnodes 2 … train.py
        # after, on every node, with the Python that starts the ranks
        python -m pip install PyYAML
    """
    yield from raised_finding(log, Raised.ALONE)
    yield from _cut(log)
    soft = softly_explained(log)
    lines = _Explained(each for each in explained(log, "cause", "umbrella") if (each.source, each.number) not in soft)
    for each in (t for t in log.tracebacks if not _is_explained(t, lines)):
        code = next((soft[each.source, n] for n in _own_lines(each) if (each.source, n) in soft), None)
        if code is not None and not is_consequence(each) and not history_of(log).survived(each):
            yield replace(_finding(log, _group([each])), role=Role.CONSEQUENCE, caused_by=code)
            return


def _cut(log: Log) -> Iterator[Finding]:
    """A traceback in which the log ends, if no other line shows why the job failed."""
    if explained(log, "cause", "umbrella") or any(
        not is_consequence(t) or t.exception == INTERRUPT for t in log.tracebacks
    ):
        return
    cut = [each for each in log.unfinished if not (history_of(log).survived(each) or is_of_launcher(each))]
    for each in cut[:1]:
        alike = [t for t in cut if t.place == each.place]
        named = _named_above(log, each)
        if named is None:
            yield _finding(log, _group(alike), undetermined=CUT)
        else:
            yield _finding(log, _group([replace(t, exception=named[0], message=named[1]) for t in alike]))


def _named_above(log: Log, cut: Traceback) -> tuple[str, str] | None:
    """The exception that a short text quotes above the traceback that it cuts, such as in the title of a report."""
    if log.sources[cut.source].lines > QUOTED_LINES:
        return None
    above = (line for line in log.heads if line.source == cut.source and line.number < cut.begin)
    return next((found for line in above if (found := quoted_in(line.text)) is not None), None)
