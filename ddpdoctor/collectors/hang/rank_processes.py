"""Finds the ranks of this node in /proc: by their launcher's variables, or among given processes and their children."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.hang import NamedProcess
from ddpdoctor.facts.launchers import BY_HAND
from ddpdoctor.facts.variables import is_relevant
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import Root
from ddpdoctor.system.timeouts import call_each_with_timeout

__all__ = ["FoundRanks", "ProcEntry", "find", "processes"]

MOST_PROCESSES = 100_000
SECONDS = 0.5
"""How long /proc may take per process: reading one that is stuck in the kernel, such as on a dead mount, blocks forever."""
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_OWN = ("ddpdoctor", "py-spy")
_TORCH = "libtorch"
_AGENTS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "srun", "mpirun")


@dataclass(frozen=True, slots=True)
class ProcEntry:
    """One process: `words` is its command line."""

    pid: int
    parent: int
    name: str
    state: str
    words: tuple[str, ...] = ()
    is_silent: bool = False
    """Reading its /proc files timed out."""

    @property
    def is_python(self) -> bool:
        return bool(self.words) and _PYTHON.fullmatch(os.path.basename(self.words[0])) is not None

    @property
    def is_agent(self) -> bool:
        """A launcher, which may have the number of its pod or task but is not a rank."""
        return any(os.path.basename(word) in _AGENTS for word in self.words[:6])

    @property
    def is_spawned(self) -> bool:
        """Started by torch.multiprocessing.spawn, whose ranks get their numbers as arguments."""
        return any("multiprocessing.spawn" in word and "spawn_main" in word for word in self.words[:8])

    @property
    def is_own(self) -> bool:
        """One of ddpdoctor's own processes."""
        return any(os.path.basename(word) in _OWN or word.startswith("ddpdoctor.") for word in self.words[:4])


@dataclass(frozen=True, slots=True)
class FoundRanks:
    """The ranks of one job on this node, each with its process; `unreadable` counts Python processes of other users,
    `not_ranks` are the given processes that are not ranks and have no ranks among their descendants.
    """

    ranks: tuple[tuple[ProcEntry, Environ], ...]
    unreadable: int = 0
    not_ranks: tuple[NamedProcess, ...] = ()


def processes(root: Root) -> dict[int, ProcEntry]:
    """All processes, without their variables."""
    pids = [int(name) for name in root.names("/proc") if name.isdigit()][:MOST_PROCESSES]
    words, late = call_each_with_timeout(lambda pid: _words(root, pid), pids, SECONDS)
    entries = {}
    for pid in pids:
        text = root.line(f"/proc/{pid}/stat") or ""
        name, fields = text.partition("(")[2].rpartition(")")[0], text.rpartition(")")[2].split()
        if len(fields) > 1 and fields[1].isdigit():
            entries[pid] = ProcEntry(pid, int(fields[1]), name, fields[0], words.get(pid, ()), is_silent=pid in late)
    return entries


def _words(root: Root, pid: int) -> tuple[str, ...]:
    return tuple(word for word in (root.line(f"/proc/{pid}/cmdline") or "").split("\0") if word)


def find(root: Root, known: Mapping[int, ProcEntry], pids: Iterable[int] = (), *, with_own: bool = False) -> FoundRanks:
    """The ranks among `known` processes: all that a launcher numbered, or those at and below `pids`.

    A rank is the first Python process that has its number: what it starts inherits the number and is not a rank. With
    `pids`, a process without a number that has no rank below it counts as one if it has loaded torch: scripts may number
    their ranks themselves. `with_own` includes ddpdoctor's own processes.
    An unreadable sibling of a launcher's ranks counts as one of them.
    """
    wanted = tuple(pids)
    below = _below(known, wanted) if wanted else set(known)
    ranks: dict[int, tuple[ProcEntry, Environ]] = {}
    unreadable = 0
    candidates = [pid for pid in sorted(below) if not known[pid].is_silent and not _is_tool(known[pid], with_own)]
    answered, late = call_each_with_timeout(lambda pid: _variables(root, pid), candidates, SECONDS)
    for pid, variables in answered.items():
        entry = known[pid]
        if variables is None:
            unreadable += entry.is_python and entry.state not in "ZX"
            continue
        environ = Environ(variables=variables)
        if environ.rank is not None and environ.world_size is not None:
            ranks[pid] = entry, environ
    tops = {pid: rank for pid, rank in ranks.items() if not _is_inner(pid, ranks, known)}
    found = [_program(pid, ranks, known, with_own) for pid in tops]
    silent = [known[pid] for pid in sorted(below) if known[pid].is_silent or pid in late]
    found += _silent(silent, tops.values())
    numbered = {entry.pid for entry, _ in found}
    given = [entry for pid in wanted for entry in _given(root, pid, numbered, known)]
    there = numbered | {entry.pid for entry in given}
    others = [pid for pid in wanted if pid in known and not _below(known, (pid,)) & there]
    not_ranks = tuple(NamedProcess(pid, _why_not(root, known[pid])) for pid in others)
    return FoundRanks((*found, *((entry, Environ()) for entry in given)), unreadable, not_ranks)


def _is_tool(entry: ProcEntry, with_own: bool) -> bool:
    """A launcher, or ddpdoctor itself."""
    return entry.is_agent or (entry.is_own and not with_own)


def _below(known: Mapping[int, ProcEntry], pids: Iterable[int]) -> set[int]:
    """These processes and their descendants."""
    below = {pid for pid in pids if pid in known}
    grown = True
    while grown:
        more = {pid for pid, entry in known.items() if entry.parent in below} - below
        below |= more
        grown = bool(more)
    return below


def _variables(root: Root, pid: int) -> dict[str, str] | None:
    try:
        text = root.text(f"/proc/{pid}/environ")
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, sign, value in pairs if sign and is_relevant(name)}


def _is_inner(pid: int, ranks: Mapping[int, tuple[ProcEntry, Environ]], known: Mapping[int, ProcEntry]) -> bool:
    """Whether an ancestor has the same rank of the same job."""
    own = ranks[pid][1]
    parent = known[pid].parent
    while parent in known:
        if parent in ranks:
            return (ranks[parent][1].rank, ranks[parent][1].world_size) == (own.rank, own.world_size)
        parent = known[parent].parent
    return False


def _silent(
    entries: Iterable[ProcEntry], ranks: Iterable[tuple[ProcEntry, Environ]]
) -> Iterable[tuple[ProcEntry, Environ]]:
    """Siblings of a rank, with the variables of that rank except its rank numbers."""
    by_parent = {entry.parent: environ for entry, environ in ranks}
    for entry in entries:
        if entry.parent in by_parent:
            environ = by_parent[entry.parent]
            numbers = environ.launcher or BY_HAND
            kept = {n: v for n, v in environ.variables.items() if n not in (*numbers.rank, *numbers.local_rank)}
            yield entry, Environ(variables=kept)


def _program(
    top: int, ranks: Mapping[int, tuple[ProcEntry, Environ]], known: Mapping[int, ProcEntry], with_own: bool
) -> tuple[ProcEntry, Environ]:
    """The Python process of a rank that a shell script or another wrapper started."""
    entry, environ = ranks[top]
    while not entry.is_python:
        children = [child for child in known.values() if child.parent == entry.pid and (with_own or not child.is_own)]
        chosen = next((child for child in children if child.is_python), children[0] if len(children) == 1 else None)
        if chosen is None:
            return ranks[top]
        entry = chosen
    return entry, environ


def _given(root: Root, pid: int, numbered: set[int], known: Mapping[int, ProcEntry]) -> list[ProcEntry]:
    """The ranks at a given pid without numbered ranks: the processes that torch.multiprocessing spawned, or the one that
    has loaded torch.
    """
    below = _below(known, (pid,))
    if pid not in known or below & numbered:
        return []
    spawned = [known[child] for child in sorted(below) if known[child].parent == pid and known[child].is_spawned]
    candidates = spawned if len(spawned) > 1 else [known[pid]]
    return [candidate for candidate in candidates if not candidate.is_agent and _has_torch(root, candidate)]


def _has_torch(root: Root, entry: ProcEntry) -> bool | None:
    """Whether a process has loaded torch's library, None if its memory map is not readable.

    A process that is stuck in the kernel, so that reading /proc blocks, counts as one that has.
    """
    found, late = call_each_with_timeout(lambda pid: _loads_torch(root, pid), [entry.pid], SECONDS)
    return True if entry.is_silent or late else found[entry.pid]


def _loads_torch(root: Root, pid: int) -> bool | None:
    try:
        return _TORCH in root.text(f"/proc/{pid}/maps")
    except OSError:
        return None


def _why_not(root: Root, entry: ProcEntry) -> str:
    """Why a process is not examined as a rank."""
    if entry.is_agent:
        return f"{entry.name} is a launcher without ranks on this node"
    if entry.is_python and _has_torch(root, entry) is None:
        return (
            f"{entry.name} has no RANK and WORLD_SIZE, and whether it uses torch is unknown: run as root or as its user"
        )
    return f"{entry.name} is not a rank: it has no RANK and WORLD_SIZE, has not loaded torch, and started no rank"
