"""What a rehearsal shows of metrics: which samples a value that is shown covers, and by what its sum is divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.facts.rehearsal import ObservationKind, RehearsalObservation
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.sequences.observed import observed
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import Track

__all__ = ["METRIC_LOOKS", "LoaderUse", "loader_uses"]

Kind = ObservationKind
LEAST_ROWS = 4


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """How the ranks read one loader. `size` is that of its data set; `samples` and `batches` are what each rank reads of it.

    `is_whole`: all ranks read the same samples in the same order; `is_divided`: each reads others.
    """

    number: object
    record: Record
    size: int | None
    batches: frozenset[int]
    samples: frozenset[int]
    is_whole: bool
    is_divided: bool
    is_evaluated: bool


def loader_uses(ranks: Sequence[Track]) -> dict[object, LoaderUse]:
    """The loaders that all ranks read, by number."""
    found = {}
    for record in ranks[0].of_kind("loader") if ranks else ():
        number = record.get("loader")
        records = [next((r for r in t.of_kind("loader") if r.get("loader") == number), None) for t in ranks]
        if any(r is None or places_of(r.get("at"))[:1] != places_of(record.get("at"))[:1] for r in records):
            continue
        use = _use(ranks, number, [r for r in records if r is not None])
        if use is not None:
            found[number] = use
    return found


def _use(ranks: Sequence[Track], number: object, records: Sequence[Record]) -> LoaderUse | None:
    rows = [_rows(track, number) for track in ranks]
    if any(len(each) < LEAST_ROWS for each in rows):
        return None
    least = min(map(len, rows))
    first = records[0]
    epochs = [r for t in ranks for r in t.of_kind("epoch") if r.get("loader") == number]
    return LoaderUse(
        number=number,
        record=first,
        size=_integer(first.get("size")),
        batches=frozenset(n for r in records if (n := _integer(r.get("batches"))) is not None),
        samples=frozenset(n for r in records if (n := _integer(r.get("drawn"))) is not None),
        is_whole=len({tuple(each[:least]) for each in rows}) == 1 and len(set(rows[0])) > 1,
        is_divided=len(set.intersection(*map(set, rows))) <= min(len(rows), least // LEAST_ROWS),
        is_evaluated=bool(epochs) and not any(r.get("is_training") for r in epochs),
    )


def _rows(track: Track, number: object) -> tuple[int, ...]:
    """The samples of the first batches of the first epoch."""
    found = [r for r in track.of_kind("rows") if r.get("loader") == number and r.get("iteration") == 0]
    return tuple(row for r in found for row in r.get("rows") or () if isinstance(row, int))


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _shown(ranks: Sequence[Track]) -> Iterator[tuple[list[Track], Record, bool]]:
    """Values that are shown or compared at one line: the ranks that do it, the record, and whether it was compared."""
    by_place: dict[tuple[object, ...], list[tuple[Track, Record]]] = {}
    for track in ranks:
        for kind in ("decided", "shown"):
            for record in track.of_kind(kind):
                key: tuple[object, ...] = (kind, places_of(record.get("at"))[:1], str(record.get("loaders")))
                entries = by_place.setdefault(key, [])
                if all(t is not track for t, _ in entries):
                    entries.append((track, record))
    for key, entries in by_place.items():
        yield [t for t, _ in entries], entries[0][1], key[0] == "decided"


def _scales(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Sums of some ranks' samples that are divided by the number of others."""
    uses = loader_uses(ranks) if len(ranks) > 1 else {}
    for tracks, record, _ in _shown(ranks):
        use = _only(uses, record)
        found = None if use is None else _scale(use, record)
        if use is not None and found is not None:
            other = use.record.get("at") if found[0] is Kind.SUM_OF_WHOLE else record.get("summed")
            at = record.get("divided") or record.get("at")
            yield observed(found[0], tracks, at, other or record.get("at"), divisor=found[1], **_of(use, ranks))
            return


def _of(use: LoaderUse, ranks: Sequence[Track]) -> dict[str, object]:
    return {"size": use.size, "samples": min(use.samples, default=None), "ranks": len(ranks)}


def _only(uses: dict[object, LoaderUse], record: Record) -> LoaderUse | None:
    """The loader of a value, if it comes from one whose use is known."""
    loaders = record.get("loaders")
    return uses.get(loaders[0]) if isinstance(loaders, list) and len(loaders) == 1 else None


def _scale(use: LoaderUse, record: Record) -> tuple[Kind, int] | None:
    degree = _integer(record.get("degree"))
    parts = {int(each) for each in record.get("parts") or () if isinstance(each, (int, float)) and each == int(each)}
    if degree is None or len(parts) != 1 or use.size is None:
        return None
    (part,) = parts
    is_local = part in use.batches or part in use.samples
    if degree <= 0 and use.is_divided and part == use.size and not is_local:
        return Kind.SHARD_OVER_WHOLE, part
    if degree == 1 and use.is_whole and (part == use.size or is_local):
        return Kind.SUM_OF_WHOLE, part
    if degree == 1 and use.is_divided and is_local and part != use.size:
        return Kind.SUM_NOT_DIVIDED, part
    return None


def _one_shard(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """An evaluation of which one rank shows, or judges by, the result of its own samples."""
    uses = loader_uses(ranks) if len(ranks) > 1 else {}
    seen = sorted(_shown(ranks), key=lambda each: not each[2])
    for tracks, record, is_compared in seen:
        use = _only(uses, record)
        degree = _integer(record.get("degree"))
        if use is None or not use.is_evaluated or not use.is_divided or degree is None or degree > 0:
            continue
        if len(tracks) < len(ranks) and len(tracks) == 1:
            iterated = next((r.get("at") for r in ranks[0].of_kind("epoch") if r.get("loader") == use.number), None)
            how = "decides" if is_compared else "is shown"
            yield observed(Kind.ONE_SHARD, tracks, record.get("at"), iterated, how=how, **_of(use, ranks))
            return


def _row_order(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Gathered rows, one rank's after the other's, that meet the rows of the data set in its order."""
    uses = loader_uses(ranks) if len(ranks) > 1 else {}
    for track in ranks:
        for record in track.of_kind("rows_paired"):
            rows = _integer(record.get("count"))
            for use in uses.values():
                if use.is_divided and "DistributedSampler" in str(use.record.get("sampler")) and rows == use.size:
                    at = use.record.get("sampled_at") or use.record.get("at")
                    yield observed(Kind.ROWS_OUT_OF_ORDER, ranks, record.get("at"), at, size=use.size)
                    return


def _divided_again(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A sampler that divides a data set which each rank has divided already."""
    if len(ranks) < 2 or not all(t.of_kind("share") for t in ranks):
        return
    shares = {t.key: t.of_kind("share") for t in ranks}
    for loader in ranks[0].of_kind("loader"):
        number, replicas = loader.get("loader"), _integer(loader.get("replicas"))
        if replicas != len(ranks) or "DistributedSampler" not in str(loader.get("sampler")):
            continue
        same = [next((r for r in t.of_kind("loader") if r.get("loader") == number), None) for t in ranks]
        contents = {None if r is None else r.get("content") for r in same}
        size = _integer(loader.get("size"))
        share = next((r for r in shares[ranks[0].key] if _is_share(r, size, replicas)), None)
        if len(contents) == len(ranks) and None not in contents and share is not None:
            at = loader.get("sampled_at") or loader.get("at")
            yield observed(Kind.DIVIDED_AGAIN, ranks, at, share.get("at"), size=size, whole=share.get("size"))
            return


def _is_share(record: Record, size: int | None, world: int) -> bool:
    whole = _integer(record.get("size"))
    return whole is not None and size is not None and whole // world <= size <= -(-whole // world)


def _parts_read(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A rank's part of a sum of a DTensor that is used as the sum."""
    for track in ranks:
        for record in track.of_kind("partial_used"):
            yield observed(Kind.PART_AS_SUM, ranks, record.get("taken"), record.get("at"))
            return


METRIC_LOOKS = (_scales, _one_shard, _row_order, _divided_again, _parts_read)
