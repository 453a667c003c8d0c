"""Which inputs are of one job: a log becomes one log per job, each of which is judged by itself.

Split only on evidence: other ids of a scheduler, a pod or a run; launches one after the other; the same rank in two processes;
times that do not overlap together with other names or folders. What says nothing of its job belongs to the only one there is,
to the only one of its folder, host or time, or to none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.log import InputKind, Log
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.log_input import is_of_job
from ddpdoctor.logs.log_pieces import JOB_KINDS, LogPiece, part_of, pieces_of

__all__ = ["JobLog", "jobs_of_log"]

_STRENGTH = ("slurm", "array", "batch", "pod", "run", "number")
"""Kinds of ids that no two jobs share; of two jobs those of one kind are compared."""
_OF_HOST = (InputKind.KERNEL, InputKind.NVIDIA_SMI)
_LEAST_NAME = 3
_LEAST_ID = 1000
"""A number in a name that is smaller may count ranks, nodes or attempts."""


@dataclass(slots=True)
class JobLog:
    """The part of a log that is of one job; `name` is None for what could not be attributed to one.

    `sources` are the indices, in the whole log, of the sources of `log`, in their order.
    """

    name: str | None
    log: Log
    sources: tuple[int, ...]


@dataclass(slots=True)
class _JobGroup:
    """Pieces that are of one job."""

    pieces: list[LogPiece] = field(default_factory=list)

    def ids(self, kind: str) -> set[str]:
        return {value for piece in self.pieces for value in piece.ids.get(kind, ())}

    @property
    def ranks(self) -> set[int]:
        return {rank for piece in self.pieces for rank in piece.ranks}

    @property
    def hosts(self) -> set[str]:
        return {host for piece in self.pieces for host in piece.hosts}

    @property
    def folders(self) -> set[str]:
        return {piece.path.folder for piece in self.pieces}

    @property
    def trees(self) -> set[str]:
        return {piece.path.tree for piece in self.pieces if piece.path.tree is not None}

    def times(self) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        for piece in self.pieces:
            for clock, (first, last) in piece.times.items():
                before = found.get(clock, (first, last))
                found[clock] = (min(first, before[0]), max(last, before[1]))
        return found

    def pids(self) -> dict[int, set[tuple[str | None, int]]]:
        found: dict[int, set[tuple[str | None, int]]] = defaultdict(set)
        for piece in self.pieces:
            for rank, pids in piece.pids.items():
                found[rank] |= pids
        return found

    @property
    def is_strong(self) -> bool:
        return any(self.ids(kind) for kind in _STRENGTH)

    @property
    def is_launch(self) -> bool:
        """It shows a launcher at its start or its end, and so is a job by itself where there are several."""
        return any(piece.is_launch for piece in self.pieces)

    @property
    def is_nameless(self) -> bool:
        """Its files are named for parts of a job."""
        return not any(piece.path.words for piece in self.pieces)

    @property
    def may_hold_first_rank(self) -> bool:
        """It holds rank 0, or names no rank."""
        ranks = self.ranks
        return 0 in ranks or not ranks


def jobs_of_log(log: Log, *, is_one_job: bool = False) -> list[JobLog]:
    """The log of each job, and one without a name for what is of none. `is_one_job`: all of it is known to be of one."""
    above = _shared_path([source.name for source in log.sources])
    pieces = pieces_of(log, above)
    own = [piece for piece in pieces if piece.kind in JOB_KINDS and is_of_job(log, piece.source)]
    if is_one_job:
        whole = _JobGroup(own or [piece for piece in pieces if piece.kind in JOB_KINDS])
        return [JobLog(_names([whole])[0], log, tuple(range(len(log.sources))))]
    jobs = _jobs(_groups(own)) or _jobs_of_dumps(pieces)
    names = _names(jobs)
    held = {id(piece) for piece in own}
    others = [piece for piece in pieces if id(piece) not in held]
    shared = _attributed(others, jobs)
    left = [piece for piece in others if not any(piece is each for group in shared for each in group)]
    if len(jobs) == 1:
        return [JobLog(names[0], log, tuple(range(len(log.sources))))]
    members = [sorted([*job.pieces, *more], key=_place) for job, more in zip(jobs, shared, strict=True)]
    if left or not jobs:
        members.append(sorted(left, key=_place))
        names.append(None)
    return _split(log, pieces, members, names)


def _jobs_of_dumps(pieces: Iterable[LogPiece]) -> list[_JobGroup]:
    """Dumps and stacks without any log are of one job."""
    left = [piece for piece in pieces if piece.kind in (InputKind.DUMP, InputKind.STACKS, InputKind.RAS)]
    return [_JobGroup(left)] if left else []


def _place(piece: LogPiece) -> tuple[int, int]:
    return piece.source, piece.begin


def _shared_path(names: Sequence[str]) -> int:
    """The length of the folders that all names share."""
    folders = [name.replace("\\", "/").split("/")[:-1] for name in names]
    if not folders:
        return 0
    same = 0
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        same += len(parts[0]) + 1
    return same


def _groups(pieces: Sequence[LogPiece]) -> list[_JobGroup]:
    """The pieces that certainly are of one job: by their ids, by torchrun's tree, by folder and name."""
    groups: dict[object, _JobGroup] = {}
    _number(pieces)
    for piece in pieces:
        groups.setdefault(_key(piece), _JobGroup()).pieces.append(piece)
    return sorted(groups.values(), key=_strength)


def _key(piece: LogPiece) -> object:
    for kind in _STRENGTH:
        if piece.ids.get(kind):
            return kind, min(piece.ids[kind]), piece.number
    if piece.path.tree is not None:
        return "tree", piece.path.tree
    if piece.number:
        return "piece", piece.source, piece.number
    return "name", piece.path.folder, piece.path.stem if not piece.path.is_of_part else piece.path.words


def _strength(group: _JobGroup) -> tuple[int, int]:
    """Groups with the strongest ids come first."""
    level = next((i for i, kind in enumerate(_STRENGTH) if group.ids(kind)), len(_STRENGTH))
    return level, 0 if group.trees else 1


def _number(pieces: Iterable[LogPiece]) -> None:
    """Take the number in a path for a job's id where there are several, and each is of a whole job."""
    families: dict[tuple[str, str], dict[str, list[LogPiece]]] = defaultdict(lambda: defaultdict(list))
    for piece in pieces:
        numbers, path = piece.path.numbers or piece.path.folder_numbers, piece.path
        if len(numbers) == 1:
            words = ("name", path.words) if path.numbers else ("folder", path.folder_words.replace(numbers[0], ""))
            families[words][numbers[0]].append(piece)
    for by_number in families.values():
        is_id = len(by_number) > 1 and all(
            int(number) >= _LEAST_ID and _is_whole(group, number) for number, group in by_number.items()
        )
        for number, group in by_number.items() if is_id else ():
            for piece in group:
                piece.ids["number"].add(number)


def _is_whole(pieces: Iterable[LogPiece], number: str) -> bool:
    """Whether these pieces hold the first rank of a job, and the number in their names is not a process id."""
    held = list(pieces)
    pids = {pid for piece in held for pairs in piece.pids.values() for _, pid in pairs}
    return any(0 in piece.ranks or piece.pids for piece in held) and int(number) not in pids


def _jobs(groups: Iterable[_JobGroup]) -> list[_JobGroup]:
    """The groups put together unless evidence shows that they are of different jobs."""
    jobs: list[_JobGroup] = []
    for group in groups:
        free = [job for job in jobs if not _are_different(job, group)]
        home = _home(group, free, jobs)
        if home is None:
            jobs.append(_JobGroup(list(group.pieces)))
        else:
            home.pieces += group.pieces
    return jobs


def _home(group: _JobGroup, free: Sequence[_JobGroup], jobs: Sequence[_JobGroup]) -> _JobGroup | None:
    """The job that a group is of; None if it is one of its own."""
    related = [job for job in free if _are_related(job, group)]
    if related:
        return related[0]
    if len(jobs) == 1:
        return free[0] if free else None
    if group.is_strong or (group.is_launch and all(_are_named_apart(job, group) for job in free)):
        return None
    beside = [job for job in free if job.folders & group.folders]
    together = [job for job in beside if group.is_nameless and _overlap(job, group)]
    return next((found[0] for found in (free, beside, together) if len(found) == 1), None)


def _are_related(job: _JobGroup, group: _JobGroup) -> bool:
    """Whether they share an id or a process, or the path of one holds the id of the other."""
    if any(job.ids(kind) & group.ids(kind) for kind in _STRENGTH):
        return True
    mine, theirs = job.pids(), group.pids()
    if any(mine[rank] & theirs[rank] for rank in mine.keys() & theirs.keys()):
        return True
    numbers = {
        number
        for piece in group.pieces
        for number in (*piece.path.numbers, *piece.path.folder_numbers, *piece.path.folders)
    }
    return bool(numbers & (job.ids("slurm") | job.ids("batch")))


def _are_different(job: _JobGroup, group: _JobGroup) -> bool:
    """Whether something shows that they are of different jobs."""
    for kind in _STRENGTH:
        mine, theirs = job.ids(kind), group.ids(kind)
        if mine and theirs and not mine & theirs:
            return True
    if _are_launches_of_one_source(job, group):
        return True
    if not _are_named_apart(job, group):
        return False
    return _is_rank_of_both(job, group) or (
        _are_apart_in_time(job, group) and job.may_hold_first_rank and group.may_hold_first_rank
    )


def _are_launches_of_one_source(job: _JobGroup, group: _JobGroup) -> bool:
    mine = {piece.source: piece.number for piece in job.pieces}
    return any(mine.get(piece.source, piece.number) != piece.number for piece in group.pieces)


def _are_named_apart(job: _JobGroup, group: _JobGroup) -> bool:
    """Whether their folders, trees or names differ in more than words for the parts of one job."""
    if job.trees and group.trees and not job.trees & group.trees:
        return True
    words = [{piece.path.words for piece in each.pieces} - {""} for each in (job, group)]
    if words[0] and words[1] and not words[0] & words[1]:
        return True
    folders = [{(piece.path.folder, piece.path.folder_words) for piece in each.pieces} for each in (job, group)]
    if not folders[0] & folders[1] and all(name for _, name in folders[0] | folders[1]):
        return True
    is_numbered = all(0 in each.ranks or each.pids() for each in (job, group))
    return (
        is_numbered
        and not {p.path.stem for p in job.pieces} & {p.path.stem for p in group.pieces}
        and not any(piece.path.is_of_part for each in (job, group) for piece in each.pieces)
    )


def _is_rank_of_both(job: _JobGroup, group: _JobGroup) -> bool:
    """Whether one rank is another process in each of them."""
    mine, theirs = job.pids(), group.pids()
    return any(not mine[rank] & theirs[rank] for rank in mine.keys() & theirs.keys())


def _are_apart_in_time(job: _JobGroup, group: _JobGroup) -> bool:
    mine, theirs = job.times(), group.times()
    shared = mine.keys() & theirs.keys()
    return bool(shared) and all(
        mine[clock][1] < theirs[clock][0] or theirs[clock][1] < mine[clock][0] for clock in shared
    )


def _overlap(job: _JobGroup, group: _JobGroup) -> bool:
    """Whether both have times of one clock, and these overlap."""
    return bool(job.times().keys() & group.times().keys()) and not _are_apart_in_time(job, group)


def _attributed(others: Iterable[LogPiece], jobs: Sequence[_JobGroup]) -> list[list[LogPiece]]:
    """For each job what else is about it: by an id or a tree in its path, by host, by folder; to the only job everything."""
    found: list[list[LogPiece]] = [[] for _ in jobs]
    for piece in others:
        group = _JobGroup([piece])
        homes = [i for i, job in enumerate(jobs) if _are_related(job, group) or job.trees & group.trees]
        if not homes and piece.kind in _OF_HOST and piece.hosts:
            homes = [i for i, job in enumerate(jobs) if job.hosts & piece.hosts]
        elif not homes and not piece.ids:
            beside = [i for i, job in enumerate(jobs) if job.folders & group.folders]
            homes = beside if len(beside) == 1 else []
        for i in range(len(jobs)) if len(jobs) == 1 else homes:
            found[i].append(piece)
    return found


def _names(jobs: Sequence[_JobGroup]) -> list[str | None]:
    """The name of each job, each once: by its folder or its number where two would have the same."""
    names = [_name(job, [other for other in jobs if other is not job]) for job in jobs]
    count = Counter(names)
    names = [
        _folder_name(job, jobs) or name if count[name] > 1 else name for job, name in zip(jobs, names, strict=True)
    ]
    count = Counter(names)
    seen: Counter[str] = Counter()
    unique: list[str | None] = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name}#{seen[name]}" if count[name] > 1 else name)
    return unique


def _name(job: _JobGroup, others: Sequence[_JobGroup]) -> str:
    paths = [piece.path for piece in job.pieces]
    labels = [path.label for path in paths if path.label is not None and path.tree is None]
    stems = sorted({path.stem for path in paths})
    numbers = {number for path in paths for number in path.numbers}
    runs = sorted(job.ids("run"))
    slurm = sorted(f"slurm-{number}" for number in job.ids("slurm"))
    known = [*labels, *slurm, *(stems if len(stems) == 1 and not job.trees else []), *runs]
    known += [tree.rpartition("/")[2] for tree in sorted(job.trees)]
    if known:
        return known[0]
    if len(numbers) == 1:
        return "-".join(word for word in (paths[0].words, *numbers) if word)
    folder = _common(sorted(job.folders))
    if folder and not any(each.startswith(folder) for other in others for each in other.folders):
        return folder.rpartition("/")[2]
    return _common_start(stems) or (stems[0] if stems else "job")


def _common_start(stems: Sequence[str]) -> str:
    """What all names begin with, without the number after it."""
    same = 0
    for letters in zip(*stems, strict=False):
        if len(set(letters)) > 1:
            break
        same += 1
    start = stems[0][:same].rstrip("0123456789-_. ") if stems else ""
    return start if len(start) >= _LEAST_NAME else ""


def _common(folders: Sequence[str]) -> str:
    """The folder that holds all of these."""
    parts = [folder.split("/") for folder in folders]
    same = [names[0] for names in zip(*parts, strict=False) if len(set(names)) == 1]
    return "/".join(same[: next((i for i, names in enumerate(zip(*parts, strict=False)) if len(set(names)) > 1), None)])


def _folder_name(job: _JobGroup, jobs: Sequence[_JobGroup]) -> str | None:
    """The first folder in which a job's files lie apart from those of all others."""
    own = {piece.path.folders for piece in job.pieces}
    others = {piece.path.folders for other in jobs if other is not job for piece in other.pieces}
    first = min(own, default=())
    for i, name in enumerate(first):
        is_own = all(each[: i + 1] == first[: i + 1] for each in own)
        if name and is_own and not any(each[: i + 1] == first[: i + 1] for each in others):
            return name
    return None


def _split(
    log: Log, pieces: Sequence[LogPiece], members: Sequence[Sequence[LogPiece]], names: Sequence[str | None]
) -> list[JobLog]:
    """One log per job, in one walk over the whole: sources are renumbered in each."""
    sources = [tuple(dict.fromkeys(piece.source for piece in held)) for held in members]
    homes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for job, held in enumerate(members):
        numbers = {source: i for i, source in enumerate(sources[job])}
        for piece in held:
            homes[id(piece)].append((job, numbers[piece.source]))
    by_source: dict[int, list[LogPiece]] = defaultdict(list)
    for piece in pieces:
        by_source[piece.source].append(piece)

    def spread(each: object, source: int, number: int) -> Iterator[tuple[int, object]]:
        for job, own in homes[id(part_of(by_source[source], number))]:
            yield job, replace(each, source=own)  # type: ignore[type-var]

    fields = ("heads", "lines", "tracebacks", "unfinished", "exits", "tails", "marks")
    parts: list[dict[str, list[object]]] = [defaultdict(list) for _ in members]
    for name in fields:
        for each in getattr(log, name):
            for job, own in spread(each, each.source, each.number):
                parts[job][name].append(own)
    for xid in log.xids:
        for job, own in spread(xid, xid.source or 0, xid.line or 1):
            parts[job]["xids"].append(own)
    for piece in pieces:
        for job, own in homes[id(piece)]:
            parts[job]["tails"] += [replace(line, source=own) for line in piece.tail or ()]
    found = []
    for job, held in enumerate(members):
        ends = {piece.source: piece.end for piece in held}
        own = tuple(replace(log.sources[i], lines=ends[i] or log.sources[i].lines) for i in sources[job])
        more = {name: tuple(values) for name, values in parts[job].items()}
        found.append(JobLog(names[job], Log(sources=own, **more), sources[job]))  # type: ignore[arg-type]
    return found
