"""What a rehearsal shows of state that the ranks should share, or should not: buffers, optimizers, random streams, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RehearsalObservation
from ddpdoctor.sequences.observed import observed
from ddpdoctor.sequences.records import Record
from ddpdoctor.sequences.tracks import WORLD, Track

__all__ = ["AGREEMENT_LOOKS"]

Kind = ObservationKind
CLOSE = 1e-4
LEAST_MERGED = 2
"""Steps with the same random state on all ranks, each another one, that are no coincidence."""
OF_JOIN = ("backward", "forward", "DistributedDataParallel")


def _differs(pairs: Sequence[object]) -> bool:
    """Whether two sums of a tensor differ between ranks."""
    numbers = [[float(n) for n in pair] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    if len(numbers) < len(pairs):
        return False
    scale = max(abs(numbers[0][1]), 1e-6)
    return any(abs(a - b) > CLOSE * scale for pair in numbers for a, b in zip(pair, numbers[0], strict=True))


def _buffers(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Buffers of the user's own modules that differ when DDP is called again: it replaces them by those of one rank."""
    if len(ranks) < 2:
        return
    for records in zip(*(t.of_kind("own_buffers") for t in ranks), strict=False):
        first = records[0]
        names = first.get("names") or []
        if any(r.get("names") != names for r in records):
            return
        for index, name in enumerate(names):
            written = (first.get("written") or [])[index : index + 1]
            if written and written[0] and _differs([(r.get("sums") or [])[index] for r in records]):
                broadcasts = "yes" if first.get("broadcasts") else None
                yield observed(Kind.BUFFERS_LOST, ranks, written[0], first.get("at"), name=name, broadcasts=broadcasts)
                return


def _never_filled(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for track in ranks:
        for record in track.of_kind("never_filled"):
            names = [str(each) for each in record.get("names") or ()]
            shown = ", ".join(names[:3])
            yield observed(
                Kind.NEVER_FILLED, ranks, record.get("at"), record.get("used"), names=shown, count=len(names)
            )
            return


def _late_no_sync(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    if len(ranks) < 2:
        return
    for record in ranks[0].of_kind("late_no_sync"):
        yield observed(Kind.LATE_NO_SYNC, ranks, record.get("at"), record.get("backward"))
        return


def _calls_in_join(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Collectives of the script between the begin and the end of a join, of which the ranks make different numbers."""
    counts = [_made_in_join(t) for t in ranks]
    for place in sorted({p for each in counts for p in each}, key=lambda p: (p.file, p.line)):
        numbers = [each.get(place, 0) for each in counts]
        if len(set(numbers)) > 1:
            joined = ranks[0].of_kind("join")[0].get("at")
            shown = ", ".join(f"{n} on rank {t.rank}" for n, t in list(zip(numbers, ranks, strict=True))[:3])
            at = [[place.file, place.line, place.function]]
            yield observed(Kind.CALLS_IN_JOIN, ranks, at, joined, numbers=shown)
            return


def _made_in_join(track: Track) -> Counter[CodePlace]:
    found: Counter[CodePlace] = Counter()
    begun = None
    for record in track.of_kind("join"):
        if record.get("on"):
            begun = record.get("call")
            continue
        ended = record.get("call")
        if isinstance(begun, int) and isinstance(ended, int):
            for call in track.sequences.get(WORLD, ()):
                if begun < call.number <= ended and call.operation not in OF_JOIN and call.places:
                    found[call.places[0]] += 1
        begun = None
    return found


def _state_on_some(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """An optimizer's state that some ranks load, before parameters differ."""
    loaded = [t for t in ranks if t.of_kind("optimizer_loaded")]
    if not loaded or len(loaded) == len(ranks):
        return
    record = loaded[0].of_kind("optimizer_loaded")[0]
    since = record.get("step") or 0
    for records in zip(*(t.of_kind("params") for t in ranks), strict=False):
        first = records[0]
        sums = [r.get("sums") or [] for r in records]
        if len({len(each) for each in sums}) > 1 or (first.get("step") or 0) < since:
            continue
        if any(_differs(pairs) for pairs in zip(*sums, strict=True)):
            yield observed(
                Kind.STATE_ON_SOME, loaded, record.get("at"), first.get("at"), step=(first.get("step") or 0) + 1
            )
            return


def _merged(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Random states that differed after a step, and are the same after later ones."""
    if len(ranks) < 2:
        return
    rows = list(zip(*(t.of_kind("stream") for t in ranks), strict=False))
    states = [[r.get("state") for r in each] for each in rows]
    apart = next((i for i, each in enumerate(states) if len(set(each)) == len(each)), None)
    if apart is None:
        return
    same = [i for i, each in enumerate(states) if i > apart and len(set(each)) == 1]
    if len({states[i][0] for i in same}) < LEAST_MERGED or any(len(set(each)) > 1 for each in states[same[0] :]):
        return
    step = rows[same[0]][0].get("step") or 0
    setters = [
        r
        for kind in ("rng_set", "seed")
        for r in ranks[0].of_kind(kind)
        if r.get("what") in (None, "torch") and isinstance(r.get("step"), int) and r["step"] <= step
    ]
    if setters:
        last = max(setters, key=lambda r: float(r.get("t") or 0.0))
        yield observed(Kind.STREAMS_MERGED, ranks, last.get("at"), rows[same[0]][0].get("at"), step=step + 1)


def _worker_draws(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Workers that the script's own function has given the same random state on every rank, and that draw from it."""
    if len(ranks) < 2:
        return
    found: dict[tuple[object, object], dict[int, Record]] = {}
    for track in ranks:
        for record in track.of_kind("worker_draws"):
            found.setdefault((record.get("loader"), record.get("worker")), {}).setdefault(track.key, record)
    for (number, _), records in found.items():
        entries = list(records.values())
        loader = next((r for r in ranks[0].of_kind("loader") if r.get("loader") == number), None)
        if len(entries) < len(ranks) or loader is None or "Distributed" not in str(loader.get("sampler")):
            continue
        for name in ("numpy", "random", "torch"):
            drawn = all(name in (r.get("drawn") or ()) and name in (r.get("seeded") or ()) for r in entries)
            if drawn and len({(r.get("states") or {}).get(name) for r in entries}) == 1:
                yield observed(Kind.SAME_WORKER_DRAWS, ranks, entries[0].get("at"), loader.get("at"), what=name)
                return


AGREEMENT_LOOKS = (
    _buffers,
    _never_filled,
    _late_no_sync,
    _calls_in_join,
    _state_on_some,
    _merged,
    _worker_draws,
)
