"""What a rehearsal shows of data: which samples ranks, epochs and workers read, and which files exist on which node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.rehearsal import ObservationKind, RehearsalObservation
from ddpdoctor.sequences.lesser_observations import collectives_before
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import Track

__all__ = ["DATA_LOOKS"]

Kind = ObservationKind
PARALLEL_NAMES = frozenset(("tp", "tensor", "tensor_parallel", "model", "mp", "model_parallel"))
"""Names of mesh dimensions whose ranks hold parts of one model, and need the same batch."""
LEAST_ROWS = 4
LOCAL_ROOTS = ("/tmp/", "/var/tmp/", "/dev/shm/", "/scratch/", "/local/", "/localscratch/", "/mnt/local")
"""Folders that every node has for itself."""
LEAST_REPLAYED = 2


def _of(
    kind: Kind, tracks: Sequence[Track], at: object, other: object = None, **values: object
) -> RehearsalObservation:
    others = places_of(other)
    return RehearsalObservation(
        kind,
        tuple(sorted({t.rank for t in tracks if t.rank is not None})),
        places_of(at),
        other=others[0] if others else None,
        values={name: str(value) for name, value in values.items() if value is not None},
    )


def _rows(track: Track, loader: object, iteration: int = 0) -> list[tuple[int, ...]]:
    """The samples of the first batches of an epoch."""
    found = [r for r in track.of_kind("rows") if r.get("loader") == loader and r.get("iteration") == iteration]
    return [tuple(row for row in r.get("rows") or () if isinstance(row, int)) for r in found]


def _training(track: Track) -> list[Record]:
    """The loaders from which a rank trains."""
    trained = {r.get("loader") for r in track.of_kind("epoch") if r.get("is_training")}
    return [r for r in track.of_kind("loader") if r.get("loader") in trained]


def _parallel_groups(ranks: Sequence[Track]) -> list[tuple[int, ...]]:
    """The groups of ranks that hold parts of one model, from the names of mesh dimensions."""
    groups: set[tuple[int, ...]] = set()
    for record in ranks[0].of_kind("mesh") if ranks else ():
        names, mesh = record.get("names"), record.get("mesh")
        if not isinstance(names, list) or not isinstance(mesh, list):
            continue
        for dimension, name in enumerate(names):
            if str(name).lower() in PARALLEL_NAMES and len(names) > 1:
                groups |= set(_lines(mesh, dimension))
    return sorted(groups)


def _lines(mesh: object, dimension: int) -> list[tuple[int, ...]]:
    """The lists of ranks that differ only in one dimension of a mesh."""
    entries = dict(_indexed(mesh, ()))
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for index, rank in entries.items():
        if dimension < len(index):
            found.setdefault((*index[:dimension], *index[dimension + 1 :]), []).append((index[dimension], rank))
    return [tuple(rank for _, rank in sorted(each)) for each in found.values()]


def _indexed(mesh: object, index: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    if isinstance(mesh, list):
        for position, each in enumerate(mesh):
            yield from _indexed(each, (*index, position))
    elif type(mesh) is int:
        yield index, mesh


def _other_batches(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks that hold parts of one model and train on different samples."""
    by_rank = {t.rank: t for t in ranks}
    for group in _parallel_groups(ranks):
        tracks = [by_rank[rank] for rank in group if rank in by_rank]
        if len(tracks) < 2 or len(tracks) < len(group):
            continue
        for loaders in zip(*map(_training, tracks), strict=False):
            rows = [_rows(t, r.get("loader")) for t, r in zip(tracks, loaders, strict=True)]
            if all(rows) and all(sum(map(len, each)) >= LEAST_ROWS for each in rows) and len(set(map(str, rows))) > 1:
                at = loaders[0].get("sampled_at") or loaders[0].get("at")
                yield _of(Kind.GROUP_DATA_DIFFERS, tracks, at, loaders[0].get("at"), group=", ".join(map(str, group)))
                return


def _shared_batches(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Some ranks of a data-parallel model that train on the same samples in the same order, though the data is divided."""
    if len(ranks) < 2 or _parallel_groups(ranks):
        return
    if not all(any(r.get("is_of_world") for r in t.of_kind("ddp")) for t in ranks):
        return
    for loaders in zip(*map(_training, ranks), strict=False):
        by_rows: dict[str, list[Track]] = {}
        for track, loader in zip(ranks, loaders, strict=True):
            rows = _rows(track, loader.get("loader"))[:LEAST_ROWS]
            if sum(map(len, rows)) < LEAST_ROWS or len({row for each in rows for row in each}) < LEAST_ROWS:
                return
            by_rows.setdefault(str(rows), []).append(track)
        shared = next((tracks for tracks in by_rows.values() if len(tracks) > 1), None)
        if shared is not None and len(by_rows) > 1:
            loader = loaders[0]
            at = loader.get("sampled_at") or loader.get("at")
            shard, replicas = loader.get("shard"), loader.get("replicas")
            if shard is not None and replicas is not None:
                yield _of(Kind.SAME_SHARD, shared, at, loader.get("at"), shard=shard, replicas=replicas)
            else:
                sampler = str(loader.get("sampler")).rpartition(".")[2]
                yield _of(Kind.SAME_DATA, shared, at, size=loader.get("size"), sampler=sampler, shared="100%")
            return


def _copies(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A stream of which every worker reads all records."""
    for track in ranks:
        for loader in _training(track):
            workers = loader.get("workers")
            if not isinstance(workers, int) or workers < 2 or loader.get("size") is not None:
                continue
            batches = _rows(track, loader.get("loader"))[:workers]
            if len(batches) == workers and len(set(batches)) == 1 and len(set(batches[0])) >= 2:
                tracks = [t for t in ranks if _training(t)]
                yield _of(Kind.WORKER_COPIES, tracks, loader.get("at"), workers=workers)
                return


def _replays(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Training that continues after the last batch of a shuffling loader, without another epoch of it; or equal epochs."""
    for track in ranks:
        for loader in _training(track):
            if not _shuffles(loader):
                continue
            number = loader.get("loader")
            record = _after_the_end(track, number) or _same_epochs(track, loader)
            if record is not None:
                began = next((r for r in track.of_kind("epoch") if r.get("loader") == number), {})
                yield _of(Kind.BATCHES_REPEATED, ranks, record.get("at") or began.get("at"), began.get("at"))
                return


def _shuffles(loader: Mapping[str, object]) -> bool:
    return loader.get("shuffles") is True or "RandomSampler" in str(loader.get("sampler"))


def _after_the_end(track: Track, loader: object) -> Record | None:
    """A call of set_epoch, or the epoch itself, if steps follow the end of the last epoch without a new one."""
    ends = [r for r in track.of_kind("epoch_end") if r.get("loader") == loader]
    epochs = [r for r in track.of_kind("epoch") if r.get("is_training")]
    if not ends or not epochs or (ends[-1].get("batches") or 0) < 2:
        return None
    end = ends[-1].get("step")
    begun = len([r for r in epochs if r.get("loader") == loader])
    is_last = begun == len(ends) and all((r.get("step") or 0) < end for r in epochs) if isinstance(end, int) else False
    if not is_last or not isinstance(end, int) or track.steps - end < LEAST_REPLAYED:
        return None
    late = [r for r in track.of_kind("set_epoch") if isinstance(r.get("step"), int) and r["step"] >= end]
    return (late or epochs)[0]


def _same_epochs(track: Track, loader: Record) -> Record | None:
    """The second epoch, if a random sampler gave it the order of the first one."""
    if "DistributedSampler" in str(loader.get("sampler")):
        return None
    first, second = (_rows(track, loader.get("loader"), iteration) for iteration in (0, 1))
    count = min(len(first), len(second))
    rows = {row for each in first for row in each}
    if count < 2 or len(rows) < 2 * LEAST_ROWS or first[:count] != second[:count]:
        return None
    return next((r for r in track.of_kind("epoch") if r.get("iteration") == 1), None)


def _node_files(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A file in a folder of the node that a rank of another node wrote, or that does not exist on this one."""
    nodes = {t.node for t in ranks}
    if len(nodes) < 2:
        return
    written: dict[str, list[tuple[Track, Record]]] = {}
    for track in ranks:
        for record in (*track.of_kind("save"), *(r for r in track.of_kind("file") if r.get("what") == "write")):
            path = str(record.get("path"))
            if path.startswith(LOCAL_ROOTS):
                written.setdefault(path, []).append((track, record))
    for reader in ranks:
        for read in (*reader.of_kind("load"), *(r for r in reader.of_kind("file") if r.get("what") == "read")):
            writers = written.get(str(read.get("path")))
            if writers and all(t.node != reader.node for t, _ in writers):
                writer, record = writers[0]
                readers = [t for t in ranks if t.node != writer.node]
                yield _of(
                    Kind.NODE_FILE,
                    readers,
                    record.get("at"),
                    read.get("at"),
                    path=record.get("path"),
                    writer=writer.rank,
                )
                return


def _on_gpu_zero(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A file with tensors of one GPU that ranks on other GPUs load without map_location."""
    saved = {str(r.get("path")): (t, r) for t in ranks for r in t.of_kind("save") if r.get("devices")}
    for reader in ranks:
        for read in reader.of_kind("load"):
            writer, record = saved.get(str(read.get("path")), (None, None))
            if writer is None or record is None or read.get("map_location") or not isinstance(read.get("device"), int):
                continue
            kept = [str(each) for each in record.get("devices") or ()]
            if kept and all(each.startswith("cuda") for each in kept) and f"cuda:{read['device']}" not in kept:
                tracks = [t for t in ranks if t.of_kind("load")]
                yield _of(Kind.LOADED_ON_OTHER_GPU, tracks, read.get("at"), record.get("at"), devices=", ".join(kept))
                return


def _saved_per_node(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """One path, outside of the folders that each node has for itself, to which one rank of each node saves at the same time."""
    by_path: dict[str, dict[int, tuple[Track, Record]]] = {}
    for track in ranks:
        for record in track.of_kind("save"):
            path = str(record.get("path"))
            if track.node is not None and not path.startswith(LOCAL_ROOTS):
                by_path.setdefault(path, {}).setdefault(track.key, (track, record))
    for path, entries in by_path.items():
        tracks = [t for t, _ in entries.values()]
        counts = [collectives_before(t, r) for t, r in entries.values()]
        if len(tracks) > 1 and len({t.node for t in tracks}) == len(tracks) and len(set(counts)) < len(counts):
            record = next(iter(entries.values()))[1]
            yield _of(Kind.SAVED_PER_NODE, tracks, record.get("at"), path=path)
            return


DATA_LOOKS = (_other_batches, _shared_batches, _copies, _replays, _node_files, _on_gpu_zero, _saved_per_node)
