"""What a rehearsal shows of values: gradients, losses, metrics, learning rates, models that should be equal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RehearsalObservation
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import WORLD, Track

__all__ = ["VALUE_LOOKS", "shares_gradients"]

Kind = ObservationKind
NEAR = 2e-3
"""How near a measured factor must be to a number, as a share of it."""
EQUAL = 1e-4
CANCELLED = 1e-3
"""A mean that is smaller than this share of its parts is made of parts that cancel: its factor is not measured."""
LEAST_STEPS = 2
"""Steps in which the same factor is seen: one may be a coincidence."""


def _observed(
    kind: Kind, tracks: Sequence[Track], at: object, other: object = None, **values: object
) -> RehearsalObservation:
    ranks = tuple(sorted({t.rank for t in tracks if t.rank is not None}))
    others = places_of(other)
    return RehearsalObservation(
        kind,
        ranks,
        places_of(at),
        other=others[0] if others else None,
        values={name: str(value) for name, value in values.items() if value is not None},
    )


def _numbers(value: object) -> list[float]:
    """The numbers of a list, none if it has anything else."""
    if not isinstance(value, list) or not all(isinstance(each, (int, float)) for each in value):
        return []
    return [float(each) for each in value]


def _is_near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= NEAR * abs(wanted)


def _gradients(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Gradients that are a multiple of the average over the ranks."""
    joined = [t for t in ranks if t.has_joined]
    if len(joined) < 2 or len(joined) < len(ranks):
        return
    factors: list[tuple[float, Record]] = []
    for records in zip(*(t.of_kind("gradients") for t in joined), strict=False):
        factor = _factor(records)
        if factor is not None:
            factors.append((factor, records[0]))
    if len(factors) < LEAST_STEPS or any(not _is_near(factor, factors[0][0]) for factor, _ in factors):
        return
    factor, record = factors[0]
    backwards = record.get("backwards") if isinstance(record.get("backwards"), int) else 1
    world, locals_ = len(joined), sum(t.node == joined[0].node for t in joined)
    if any(_is_near(factor * (backwards or 1) ** power, 1.0) for power in (0, 1)):
        return
    reduced = _reduced_at(joined[0], record)
    if reduced is None:
        return
    if _is_near(factor, world):
        if all(r.get("mean") for _, r in factors):
            yield _observed(Kind.GRADIENTS_SUMMED, joined, reduced, record.get("at"), ranks=world)
        return
    divisor = world / factor
    is_odd = _is_near(factor, 1 / world) or (divisor > 1 and _is_near(divisor, round(divisor)))
    if is_odd and (round(divisor) in (locals_, world // max(locals_, 1), world * world) or world % round(divisor) == 0):
        yield _observed(
            Kind.GRADIENT_SCALE, joined, reduced, record.get("at"), divisor=round(divisor), ranks=world,
            factor=f"{factor:.4g}",
        )  # fmt: skip


def _factor(records: Sequence[Record]) -> float | None:
    """By what the gradients of one step are larger than the average of the ranks; None if it is not one number."""
    first = records[0]
    if any(r.get("shapes") != first.get("shapes") or r.get("notes") for r in records):
        return None
    local = [_numbers(r.get("local")) for r in records]
    used = [_numbers(r.get("used")) for r in records]
    count = len(used[0])
    if any(len(each) != count for each in (*local, *used)):
        return None
    found: list[float] = []
    for index in range(count):
        parts, results = [each[index] for each in local], [each[index] for each in used]
        mean, size = sum(parts) / len(parts), max(map(abs, parts))
        if not all(map(math.isfinite, (*parts, *results))) or abs(mean) <= CANCELLED * size or size < 1e-9:
            continue
        if max(results) - min(results) > EQUAL * max(map(abs, results)):
            return None
        found.append(results[0] / mean)
    if not found or any(not _is_near(each, found[0]) for each in found) or found[0] <= 0:
        return None
    return found[0]


def shares_gradients(ranks: Sequence[Track]) -> bool | None:
    """Whether the optimizers of the ranks use equal gradients of some parameter; None if that was not measured."""
    records = next(zip(*(t.of_kind("gradients") for t in ranks), strict=False), ())
    used = [_numbers(r.get("used")) for r in records]
    if len(used) < 2 or len({len(each) for each in used}) > 1 or not used[0]:
        return None
    return any(not _spread(each, EQUAL) for each in zip(*used, strict=True))


def _reduced_at(track: Track, record: Record) -> object:
    """The line of the all_reduce of the gradients: the last one of the world before the first optimizer step."""
    step = record.get("step")
    calls = [
        call
        for call in track.sequences.get(WORLD, ())
        if call.operation in ("all_reduce", "all_reduce_coalesced") and call.record.get("step") == step
    ]
    shapes = [tuple(shape) for shape in record.get("shapes") or () if isinstance(shape, list)]
    total = sum(math.prod(shape) for shape in shapes)
    for call in calls:
        sizes = [shape for _, shape, _ in call.tensors()]
        if any(shape in shapes or math.prod(shape) == total for shape in sizes):
            return call.record.get("at")
    return None


def _by_place(ranks: Sequence[Track], kind: str) -> Iterator[list[tuple[Track, Record]]]:
    """The first record of a kind at each line, of each rank."""
    found: dict[tuple[CodePlace, ...], dict[int, tuple[Track, Record]]] = defaultdict(dict)
    for track in ranks:
        for record in track.of_kind(kind):
            found[places_of(record.get("at"))[:1]].setdefault(track.key, (track, record))
    for entries in found.values():
        yield list(entries.values())


def _divided_by_sums(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for entries in _by_place(ranks, "divided_by_sum"):
        if len(entries) == len(ranks) > 1:
            record = entries[0][1]
            yield _observed(Kind.DIVIDED_BY_SUM, ranks, record.get("at"), record.get("backward"), ranks=len(ranks))
            return


def _reduced_again(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for entries in _by_place(ranks, "reduced_again"):
        if len(entries) == len(ranks) > 1:
            record = entries[0][1]
            yield _observed(Kind.REDUCED_AGAIN, ranks, record.get("at"), record.get("added"))
            return


def _unequal_parts(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Means that are reduced although the ranks divided them by different numbers."""
    if len(ranks) < 2:
        return
    for records in zip(*(t.of_kind("ratio_reduced") for t in ranks), strict=False):
        if len({places_of(r.get("at"))[:1] for r in records}) > 1:
            return  # the ranks were not at the same line
        divisors = [r.get("divisor") for r in records]
        if all(isinstance(each, (int, float)) for each in divisors) and len(set(divisors)) > 1:
            shown = ", ".join(f"{each:g}" for each in divisors[:4] if isinstance(each, (int, float)))
            yield _observed(Kind.RATIO_MEAN, ranks, records[0].get("divided"), records[0].get("at"), divisors=shown)
            return


def _padding(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A sum over the ranks divided by the size of a data set that a sampler has padded."""
    if len(ranks) < 2:
        return
    padded = {
        loader["size"]: loader
        for loader in ranks[0].of_kind("loader")
        if "DistributedSampler" in str(loader.get("sampler"))
        and isinstance(loader.get("size"), int)
        and isinstance(loader.get("replicas"), int)
        and loader["replicas"] > 1
        and loader["size"] % loader["replicas"]
        and not loader.get("sampler_drops")
        and any(r.get("loader") == loader.get("loader") and not r.get("is_training") for r in ranks[0].of_kind("epoch"))
    }
    for track in ranks:
        for record in track.of_kind("sum_divided"):
            loader = padded.get(record.get("divisor"))
            if loader is not None:
                read = -(-loader["size"] // loader["replicas"]) * loader["replicas"]
                yield _observed(
                    Kind.PADDING_COUNTED, ranks, record.get("at"), loader.get("at"), size=loader["size"], read=read
                )
                return


def _gathered(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for entries in _by_place(ranks, "gathered_without_gradient"):
        if len(entries) == len(ranks) > 1:
            record = entries[0][1]
            yield _observed(Kind.GATHERED_CUT, ranks, record.get("at"), record.get("used"))
            return


def _differ(sums: Sequence[Any]) -> int:
    """How many of the tensors, of which each rank has two sums, differ between ranks."""
    if len({len(each) for each in sums}) != 1:
        return 0
    count = 0
    for values in zip(*sums, strict=True):
        pairs = [_numbers(each) for each in values]
        if any(len(pair) != 2 for pair in pairs):
            return 0
        scale = max(abs(pairs[0][1]), 1e-6)
        if any(abs(a - b) > EQUAL * scale for pair in pairs for a, b in zip(pair, pairs[0], strict=True)):
            count += 1
    return count


def _evaluated(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Models of a data-parallel job that all ranks evaluate and that differ."""
    ddp = [t.of_kind("ddp") for t in ranks]
    if len(ranks) < 2 or not all(any(r.get("is_of_world") for r in each) for each in ddp):
        return
    has_broadcasts = any(r.get("broadcasts") for each in ddp for r in each)
    for records in zip(*(t.of_kind("evaluated") for t in ranks), strict=False):
        first = records[0]
        if any(
            r.get("digest") != first.get("digest")
            or r.get("step") != first.get("step")
            or places_of(r.get("at"))[:1] != places_of(first.get("at"))[:1]
            for r in records
        ):
            return
        count = _differ([r.get("sums") or [] for r in records])
        what = "parameters"
        if not count and not has_broadcasts:
            count, what = _differ([r.get("buffers") or [] for r in records]), "buffers"
        if count and first.get("step"):
            yield _observed(
                Kind.EVALUATED_APART,
                ranks,
                first.get("at"),
                None if what == "parameters" else ddp[0][0].get("at"),
                what=what,
                model=first.get("what"),
                count=count,
            )
            return


def _nothing_loaded(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for entries in _by_place(ranks, "nothing_loaded"):
        record = entries[0][1]
        yield _observed(
            Kind.NOTHING_LOADED,
            [t for t, _ in entries],
            record.get("at"),
            _saved_at(ranks),
            key=record.get("key"),
            wanted=record.get("wanted"),
            count=record.get("count"),
        )
        return


def _saved_at(ranks: Sequence[Track]) -> object:
    return next((r.get("at") for t in ranks for r in t.of_kind("save")), None)


def _not_replicated(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Local tensors that are called replicated and differ between the ranks of a mesh dimension."""
    groups: dict[tuple[int, ...], dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for track in ranks:
        for record in track.of_kind("replicated"):
            members = record.get("ranks")
            if track.rank is not None and isinstance(members, list) and track.rank in members:
                groups[tuple(members)][track.rank].append(record)
    for members, found in groups.items():
        if set(found) != set(members):
            continue
        for records in zip(*(found[rank] for rank in members), strict=False):
            if len({str((places_of(r.get("at"))[:1], r.get("shape"))) for r in records}) > 1:
                break
            if _differ([[r.get("sums")] for r in records]):
                tracks = [t for t in ranks if t.rank in members]
                yield _observed(Kind.NOT_REPLICATED, tracks, records[0].get("at"), shape=records[0].get("shape"))
                return


def _rates(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Learning rates of one optimizer that differ between ranks in a step."""
    if len(ranks) < 2 or any(t.of_kind("plateau") for t in ranks):
        return
    for records in zip(*(t.of_kind("rates") for t in ranks), strict=False):
        first = records[0]
        if any(r.get("digest") != first.get("digest") or r.get("optimizer") != first.get("optimizer") for r in records):
            return
        rates = [_numbers(r.get("rates")) for r in records]
        different = next((i for i, each in enumerate(zip(*rates, strict=False)) if _spread(each)), None)
        if different is not None:
            shown = ", ".join(f"{each[different]:.4g}" for each in rates[:4])
            yield _observed(Kind.RATES_DIFFER, ranks, first.get("at"), rates=shown, step=(first.get("step") or 0) + 1)
            return


def _spread(values: Sequence[float], share: float = 1e-6) -> bool:
    """Whether numbers differ by more than a share of the largest one."""
    return max(values) - min(values) > 1e-9 + share * max(map(abs, values))


def _scaled_shards(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Shards of gradients that each rank scales by another factor."""
    if len(ranks) < 2:
        return
    seen = 0
    for records in zip(*(t.of_kind("shards_scaled") for t in ranks), strict=False):
        factors = _numbers([r.get("factor") for r in records])
        if len(factors) == len(records) and max(factors) - min(factors) > 1e-2 * max(factors):
            seen += 1
        if seen >= LEAST_STEPS:
            shown = ", ".join(f"{each:.3g}" for each in factors[:4])
            yield _observed(Kind.SHARDS_SCALED, ranks, records[0].get("at"), factors=shown)
            return


def _moved(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for entries in _by_place(ranks, "moved_after_wrap"):
        record = entries[0][1]
        yield _observed(
            Kind.MOVED,
            [t for t, _ in entries],
            record.get("at"),
            before=record.get("before"),
            after=record.get("after"),
        )
        return


VALUE_LOOKS = (
    _gradients,
    _divided_by_sums,
    _reduced_again,
    _unequal_parts,
    _padding,
    _gathered,
    _evaluated,
    _nothing_loaded,
    _not_replicated,
    _rates,
    _scaled_shards,
    _moved,
)
