"""What a rehearsal shows of a script's habits: random numbers, schedules, trackers, folders, unused parameters, spawned ranks."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RankEnd, RehearsalObservation
from ddpdoctor.sequences.branches import Sources
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import WORLD, Track

__all__ = ["LESSER_LOOKS", "collectives_before", "divided_losses", "set_orders"]

Kind = ObservationKind
WORLD_WORDS = re.compile(r"world|num_gpus|n_gpus|num_processes|num_replicas", re.IGNORECASE)
LEAST_DRAWS = 2
"""The number of equal draws that rules out a coincidence: one number of a small range may be equal."""
NEAR = 0.26
"""How near a ratio of steps must be to the number of ranks, as a share of it."""


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


def collectives_before(track: Track, record: Record) -> int:
    """How many collectives of the whole world a rank had made when it left a record."""
    limit = record.get("call", 0)
    return sum(call.number <= limit for call in track.sequences.get(WORLD, ()))


def _unused(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Parameters of a DDP model without a gradient: never used, or frozen after DDP was constructed."""
    found = [(t, t.raised) for t in ranks if t.raised is not None and places_of(t.raised.get("wrapped_at"))]
    if not found:
        return
    record = found[0][1]
    names = ", ".join(map(str, (record.get("names") or [])[:4]))
    frozen = record.get("frozen_at")
    if places_of(frozen):
        yield _observed(Kind.FROZEN_AFTER_WRAP, [t for t, _ in found], frozen, record.get("wrapped_at"), names=names)
        return
    yield _observed(
        Kind.UNUSED_PARAMETERS, [t for t, _ in found], record.get("wrapped_at"), record.get("at"), names=names
    )


def _trackers(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """One tracker that all ranks start."""
    started = [(t, t.of_kind("tracker")[0]) for t in ranks if t.rank is not None and t.of_kind("tracker")]
    if len({t.rank for t, _ in started}) == len(ranks) > 1:
        yield _observed(Kind.TRACKERS, [t for t, _ in started], started[0][1].get("at"), what=started[0][1].get("what"))


def _same_draws(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks that read different samples and draw the same random numbers for them."""
    if len(ranks) < 2 or not _reads_shards(ranks):
        return
    draws = [[(r.get("digest"), r.get("size")) for r in _repeated_draws(t)] for t in ranks]
    count = min(map(len, draws))
    if count >= LEAST_DRAWS and all(each[:count] == draws[0][:count] for each in draws) and len(set(draws[0])) > 1:
        record = _repeated_draws(ranks[0])[0]
        yield _observed(
            Kind.SAME_DRAWS,
            ranks,
            _seeded(ranks[0], "torch") or record.get("at"),
            record.get("at"),
            what=record.get("what"),
        )
        return
    for generator in ("random", "numpy"):
        found = [[(r.get("states") or {}).get(generator) for r in t.of_kind("batch")] for t in ranks]
        least = min(map(len, found))
        is_used = least >= LEAST_DRAWS and len(set(found[0][:least])) == least
        if is_used and all(each[:least] == found[0][:least] for each in found):
            batch = next((r.get("at") for r in ranks[0].of_kind("epoch")), None)
            yield _observed(Kind.SAME_DRAWS, ranks, _seeded(ranks[0], generator) or batch, batch, what=generator)
            return


def _repeated_draws(track: Track) -> list[Record]:
    """The draws of lines that draw in more than one step: others make data, or weights, once."""
    steps: dict[tuple[CodePlace, ...], set[object]] = defaultdict(set)
    for record in track.of_kind("draw"):
        steps[places_of(record.get("at"))[:1]].add(record.get("step"))
    return [r for r in track.of_kind("draw") if len(steps[places_of(r.get("at"))[:1]]) > 1]


def _seeded(track: Track, generator: str) -> object:
    """The outermost line of the last call that gave a generator its seed."""
    record = next((r for r in reversed(track.of_kind("seed")) if r.get("what") == generator), None)
    at = record.get("at") if record is not None else None
    return at[-1:] if isinstance(at, list) else None


def _reads_shards(ranks: Sequence[Track]) -> bool:
    """Whether a training loader gives each rank samples of its own."""
    for track in ranks:
        loaders = [r for r in track.of_kind("loader") if "Distributed" in str(r.get("sampler"))]
        trained = {r.get("loader") for r in track.of_kind("epoch") if r.get("is_training")}
        if not any(r.get("loader") in trained and len(ranks) == r.get("replicas") for r in loaders):
            return False
    return True


def _schedules(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A schedule that is as many times longer than the training as there are ranks."""
    planned = next(_planned(ranks[0], len(ranks)), None) if len(ranks) > 1 else None
    if planned is not None:
        record, made = planned
        values = {"total": record.get("total"), "made": made, "ranks": len(ranks)}
        yield _observed(Kind.LONG_SCHEDULE, ranks, record.get("at"), **values)
        return
    if len(ranks) < 2 or any(t.end is not RankEnd.FINISHED or t.of_kind("cut") for t in ranks):
        return
    for record in ranks[0].of_kind("left"):
        for each in record.get("schedules") or ():
            if not (
                isinstance(each, list) and len(each) == 3 and isinstance(each[0], int) and isinstance(each[1], int)
            ):
                continue
            total, made, at = each
            if made > 1 and abs(total / made - len(ranks)) <= NEAR * len(ranks) / 2:
                yield _observed(Kind.LONG_SCHEDULE, ranks, at, total=total, made=made, ranks=len(ranks))
                return


def _planned(track: Track, world: int) -> Iterator[tuple[Record, int]]:
    """Schedules that count the batches of all ranks, with the steps that one rank makes: from the loader and the epochs."""
    trained = {r.get("loader") for r in track.of_kind("epoch") if r.get("is_training")}
    loaders = [r for r in track.of_kind("loader") if r.get("loader") in trained and r.get("replicas") == world]
    counts = [r["batches"] for r in loaders if isinstance(r.get("batches"), int) and r["batches"] > 1]
    for record in track.of_kind("schedule") if len(set(counts)) == 1 else ():
        total, per_epoch, epochs = record.get("total"), record.get("per_epoch"), record.get("epochs")
        if not isinstance(total, int) or not isinstance(epochs, list):
            continue
        if isinstance(per_epoch, int):
            if _is_times(per_epoch, counts[0], world):
                yield record, counts[0] * max(1, round(total / per_epoch))
            continue
        plans = [epoch * counts[0] for epoch in epochs if isinstance(epoch, int)]
        if not any(_is_times(total, plan, 1) for plan in plans):
            yield from ((record, plan) for plan in plans if _is_times(total, plan, world))


def _is_times(total: int, made: int, factor: int) -> bool:
    return made > 0 and abs(total / made - factor) <= NEAR * factor / 2


def _spawned(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks that a launcher started and that each start ranks themselves."""
    starters = [t for t in ranks if t.index is not None and t.of_kind("spawning") and t.joining is None]
    children = [t for t in ranks if t.index is None and t.joining is not None]
    if len(starters) > 1 and children:
        record = starters[0].of_kind("spawning")[0]
        yield _observed(Kind.SPAWN_UNDER_LAUNCHER, starters, record.get("at"), count=record.get("count"))


def _folder_races(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A folder that one rank makes, and into which another one writes without a collective between the two."""
    for maker in ranks:
        for made in maker.of_kind("file"):
            folder = str(made.get("path"))
            if made.get("what") != "os.mkdir" or made.get("exists"):
                continue
            for writer in ranks:
                if writer is maker or writer.node != maker.node:
                    continue
                for record in (*writer.of_kind("save"), *writer.of_kind("file")):
                    is_inside = str(record.get("path")).startswith(folder + "/") and record.get("what") not in READS
                    if not is_inside or _has_made(writer, folder, str(record.get("path"))):
                        continue
                    if collectives_before(writer, record) <= collectives_before(maker, made):
                        yield _observed(
                            Kind.FOLDER_RACE, [writer], record.get("at"), made.get("at"), path=folder, maker=maker.rank
                        )
                        return


READS = ("read", "os.mkdir")


def _has_made(track: Track, folder: str, path: str) -> bool:
    """Whether a rank itself makes a folder, or one in it that holds the path: `makedirs` makes what is missing above."""
    own = [str(r.get("path")) for r in track.of_kind("file") if r.get("what") == "os.mkdir"]
    return any(each == folder or (each.startswith(folder + "/") and path.startswith(each + "/")) for each in own)


def _in_graph(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A collective that changed a tensor from which a backward pass started."""
    by_place: dict[tuple[CodePlace, ...], list[tuple[Track, Record]]] = defaultdict(list)
    for track in ranks:
        for record in track.of_kind("in_graph"):
            by_place[places_of(record.get("at"))[:1]].append((track, record))
    for entries in by_place.values():
        record = entries[0][1]
        yield _observed(
            Kind.REDUCED_LOSS,
            [t for t, _ in entries],
            record.get("at"),
            record.get("backward"),
            what=record.get("what"),
        )


def _outsiders(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks that call a collective of a group without being members."""
    by_place: dict[tuple[CodePlace, ...], list[tuple[Track, Record]]] = defaultdict(list)
    for track in ranks:
        for record in track.of_kind("outsider"):
            by_place[places_of(record.get("at"))[:1]].append((track, record))
    for entries in list(by_place.values())[:1]:
        record = entries[0][1]
        yield _observed(Kind.OUTSIDER, [t for t, _ in entries], record.get("at"), what=record.get("op"))


def _clipped(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    found = [(t, t.of_kind("clipped_shards")[0]) for t in ranks if t.of_kind("clipped_shards")]
    if found and len(ranks) > 1:
        yield _observed(Kind.CLIPPED_SHARDS, [t for t, _ in found], found[0][1].get("at"))


def _unscaled(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    found = [(t, t.of_kind("reduced_after_unscale")[0]) for t in ranks if t.of_kind("reduced_after_unscale")]
    if found and len(ranks) > 1:
        record = found[0][1]
        yield _observed(Kind.UNSCALED_EARLY, [t for t, _ in found], record.get("at"), record.get("reduced"))


def _averaged_twice(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    found = [(t, t.of_kind("averaged_twice")[0]) for t in ranks if t.of_kind("averaged_twice")]
    if found and len(ranks) > 1:
        yield _observed(Kind.DIVIDED_TWICE, [t for t, _ in found], found[0][1].get("at"), what="averaged gradients")


def divided_losses(ranks: Sequence[Track], sources: Sources) -> Iterator[RehearsalObservation]:
    """Losses of DDP models that are divided by the number of ranks: the divisor names it, and its value is a multiple of it."""
    for track in ranks[:1] if len(ranks) > 1 else ():
        for record in track.of_kind("loss_divided"):
            at = places_of(record.get("at"))[:1]
            is_multiple = isinstance(record.get("divisor"), float) and record["divisor"] % len(ranks) == 0
            if at and is_multiple and WORLD_WORDS.search(_divisors(sources.line(at[0]))):
                yield _observed(Kind.DIVIDED_TWICE, ranks, record.get("at"), what="the loss of a DDP model")
                return


def _divisors(line: str) -> str:
    """What a line divides by: `loss * world / count` divides by `count`. The whole line if it has no operator for it."""
    _, *parts = line.split("/")
    return " ".join(part.partition("*")[0] for part in parts) if parts else line


def _unregistered(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    found = [(t, t.of_kind("unregistered")[0]) for t in ranks if t.of_kind("unregistered")]
    if found and len(ranks) > 1:
        names = ", ".join(map(str, (found[0][1].get("names") or [])[:3]))
        yield _observed(Kind.UNREGISTERED, [t for t, _ in found], found[0][1].get("at"), names=names)


def _removals(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A file that one rank removes although no collective lies between another rank's read and the removal."""
    for remover in ranks:
        for removed in (r for r in remover.of_kind("file") if r.get("what") == "os.remove"):
            for reader in ranks:
                if reader is remover or reader.node != remover.node:
                    continue
                reads = (*reader.of_kind("load"), *(r for r in reader.of_kind("file") if r.get("what") == "read"))
                for read in (r for r in reads if r.get("path") == removed.get("path")):
                    if collectives_before(remover, removed) <= collectives_before(reader, read):
                        yield _observed(
                            Kind.REMOVED_EARLY,
                            [remover],
                            removed.get("at"),
                            read.get("at"),
                            path=removed.get("path"),
                            reader=reader.rank,
                        )
                        return


def set_orders(ranks: Sequence[Track], sources: Sources) -> Iterator[RehearsalObservation]:
    """Loops over sets of texts in which there is a collective: each process has another order."""
    for record in ranks[0].of_kind("sets") if len(ranks) > 1 else ():
        names = {str(name) for name in record.get("names") or ()}
        for place in places_of(record.get("at")):
            loops = [each.node for each in sources.around(place) if each.part == "body"]
            for node in (each for each in loops if isinstance(each, (ast.For, ast.AsyncFor))):
                name = ast.unparse(node.iter)
                if name in names:
                    at = CodePlace(place.file, node.lineno, place.function)
                    found = _observed(Kind.SET_ORDER, ranks, None, name=name)
                    yield replace(found, places=(at,), other=place)
                    return


LESSER_LOOKS = (
    _unused,
    _trackers,
    _same_draws,
    _schedules,
    _spawned,
    _folder_races,
    _in_graph,
    _outsiders,
    _clipped,
    _unscaled,
    _averaged_twice,
    _unregistered,
    _removals,
)
