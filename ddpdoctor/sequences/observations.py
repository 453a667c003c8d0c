"""What a rehearsal shows besides differing calls: devices, data, files, parameters, works without a wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.rehearsal import CodePlace, ObservationKind, RankEnd, RehearsalObservation
from ddpdoctor.sequences.agreement_observations import AGREEMENT_LOOKS
from ddpdoctor.sequences.data_observations import DATA_LOOKS
from ddpdoctor.sequences.lesser_observations import LESSER_LOOKS, collectives_before
from ddpdoctor.sequences.metric_observations import METRIC_LOOKS
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import WORLD, MadeCall, Track, numel
from ddpdoctor.sequences.value_observations import VALUE_LOOKS, shares_gradients

__all__ = ["observations"]

Kind = ObservationKind
TOLERANCE = 1e-4
MOST_COMPARED = 64
LEAST_SHARED = 0.5
"""The share of equal samples from which on two ranks read the same data."""


def observations(ranks: Sequence[Track], parents: Sequence[Track] = ()) -> tuple[RehearsalObservation, ...]:
    """Everything that was seen, in the order of the kinds. `parents` are processes that only start ranks."""
    found: list[RehearsalObservation] = []
    for look in _LOOKS:
        found += look(ranks)
    starting = next((p for t in parents for r in t.of_kind("child_join")[-1:] for p in places_of(r.get("at"))), None)
    return (*found, *_not_filled(ranks, starting))


def _of(kind: Kind, tracks: Sequence[Track], record: Record, **values: object) -> RehearsalObservation:
    ranks = tuple(sorted(t.rank for t in tracks if t.rank is not None))
    return RehearsalObservation(
        kind, ranks, places_of(record.get("at")), values={k: str(v) for k, v in values.items() if v is not None}
    )


def _uses_nccl(track: Track) -> bool:
    return "nccl" in track.backend


def _same_device(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks of one node whose collectives, or DDP models, are on one GPU."""
    users: dict[tuple[int | None, str], dict[int, tuple[Track, Record, str]]] = defaultdict(dict)
    for track in ranks:
        if not _uses_nccl(track) or track.rank is None:
            continue
        for device, record, operation in _devices_used(track):
            users[track.node, device].setdefault(track.rank, (track, record, operation))
    for (_, device), found in sorted(users.items(), key=lambda item: item[0][1]):
        if len(found) < 2:
            continue
        tracks = [track for track, _, _ in found.values()]
        _, record, operation = next(iter(found.values()))
        used = _of(Kind.SAME_DEVICE, tracks, record, device=device, operation=operation)
        named = _named(tracks, device)
        yield used if named is None else replace(used, places=(named,), other=used.place)
        return


def _devices_used(track: Track) -> Iterator[tuple[str, Record, str]]:
    """The GPUs of a rank's collectives and DDP models, with the record and the operation."""
    for call in track.calls.values():
        for _, _, device in call.tensors():
            if device is not None and device.startswith("cuda") and not _is_of_other_backend(track, call):
                yield device, call.record, call.operation
    for record in track.of_kind("ddp"):
        places = record.get("devices")
        if isinstance(places, list) and len(places) == 1 and str(places[0]).startswith("cuda"):
            yield str(places[0]), record, "DistributedDataParallel"


def _named(tracks: Sequence[Track], device: str) -> CodePlace | None:
    """The line at which all of these ranks name the device, None if there is no such line."""
    places = [
        next(
            (
                p
                for r in track.of_kind("device")
                if f"cuda:{r.get('index')}" == device
                for p in places_of(r.get("at"))[:1]
            ),
            None,
        )
        for track in tracks
    ]
    return places[0] if len(set(places)) == 1 else None


def _each_first(ranks: Sequence[Track], kind: str, observed: Kind, *values: str) -> Iterator[RehearsalObservation]:
    """Records of one kind, as one observation per place."""
    by_place: dict[object, list[tuple[Track, Record]]] = defaultdict(list)
    for track in ranks:
        for record in track.of_kind(kind):
            entry = by_place[places_of(record.get("at"))[:1]]
            if all(t is not track for t, _ in entry):
                entry.append((track, record))
    for entries in by_place.values():
        record = entries[0][1]
        yield _of(observed, [t for t, _ in entries], record, **{name: _plain(record.get(name)) for name in values})


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _ordinals(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "ordinal", Kind.BAD_ORDINAL, "index", "count")


def _two_devices(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "devices", Kind.TWO_DEVICES, "operation", "devices")


def _joins(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Addresses, ports or world sizes that differ between ranks."""
    joining = [(t, t.joining) for t in ranks if t.joining is not None]
    if len(joining) < 2:
        return
    for key, name in (
        ("port", "MASTER_PORT"),
        ("method", "init_method"),
        ("world_given", "world_size"),
        ("backend", "backend"),
    ):
        values = {t.rank: r.get(key) for t, r in joining}
        if len(set(map(str, values.values()))) > 1:
            shown = ", ".join(
                f"{value} on rank {rank}" for rank, value in sorted(values.items(), key=lambda each: each[0] or 0)[:3]
            )
            found = _of(Kind.JOINS_DIFFER, [t for t, _ in joining], joining[0][1], what=name, values=shown)
            assigned = (r for t, _ in joining for r in t.of_kind("variable") if r.get("what") == name)
            places = next((places_of(r.get("at")) for r in assigned), ())
            yield replace(found, places=places, other=found.place) if places else found
            return


def _outside(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Ranks that are not below the size of their world."""
    for track in ranks:
        given, size = (track.joining or {}).get("rank_given"), (track.joining or {}).get("world_given")
        if isinstance(given, int) and isinstance(size, int) and 0 < size <= given:
            yield _of(Kind.RANK_OUTSIDE, [track], track.joining or {}, rank=given, size=size)
            return


def _not_filled(ranks: Sequence[Track], starting: CodePlace | None = None) -> Iterator[RehearsalObservation]:
    """Processes that wait for more ranks than were started; `starting` is where their parent waits for one of them."""
    waiting = [t for t in ranks if t.joining is not None and not t.has_joined]
    sizes = {(t.joining or {}).get("world_given") for t in waiting}
    size = sizes.pop() if len(sizes) == 1 else None
    if waiting and len(waiting) == len(ranks) and isinstance(size, int) and len(waiting) < size:
        found = _of(Kind.WORLD_NOT_FILLED, waiting, waiting[0].joining or {}, size=size, count=len(waiting))
        yield found if starting is None else replace(found, places=(starting,), other=found.place)


def _bad_forks(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "bad_fork", Kind.BAD_FORK)


def _folders(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A folder that every rank makes at one line under another name, which is not made of its rank.

    Folders of libraries, and temporary ones, are meant to differ.
    """
    by_place: dict[object, dict[int, tuple[Track, Record]]] = defaultdict(dict)
    for track in ranks:
        for record in track.of_kind("file"):
            if record.get("what") == "os.mkdir" and track.rank is not None and not record.get("library"):
                by_place[places_of(record.get("at"))[:1]].setdefault(track.rank, (track, record))
    for entries in by_place.values():
        paths = {rank: str(record.get("path")) for rank, (_, record) in entries.items()}
        if len(entries) == len(ranks) > 1 and len(set(paths.values())) == len(paths) and not _is_of_rank(paths):
            track, record = next(iter(entries.values()))
            yield _of(Kind.FOLDERS_DIFFER, ranks, record, path=record.get("path"))
            return


def _is_of_rank(paths: dict[int, str]) -> bool:
    """Whether the paths are equal but for the ranks in them."""
    return len({path.replace(str(rank), "#") for rank, path in paths.items()}) == 1 or all(
        str(r) in p for r, p in paths.items()
    )


def _idle(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Optimizers whose parameters have no gradients in any step, although there are backward passes."""
    if any(len(t.of_kind("idle")) < t.steps for t in ranks):
        return
    yield from _each_first(ranks, "idle", Kind.IDLE_OPTIMIZER)


def _data_parallel(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """DataParallel over several GPUs, in a world of several ranks."""
    if len(ranks) > 1 and any(
        isinstance(r.get("count"), int) and r["count"] > 1 for t in ranks for r in t.of_kind("data_parallel")
    ):
        yield from list(_each_first(ranks, "data_parallel", Kind.DATA_PARALLEL))[:1]


def _shards(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """DistributedSamplers at one line of which several ranks have one shard, or that shuffle with different seeds."""
    by_place: dict[object, list[tuple[Track, Record]]] = defaultdict(list)
    for track in ranks:
        for loader in track.of_kind("loader"):
            if "DistributedSampler" in str(loader.get("sampler")) and track.has_joined:
                by_place[places_of(loader.get("at"))[:1], loader.get("loader")].append((track, loader))
    for entries in by_place.values():
        record = entries[0][1]
        if (
            len(entries) < 2
            or len({r.get("replicas") for _, r in entries}) > 1
            or len({r.get("size") for _, r in entries}) > 1
        ):
            continue
        shards = [r.get("shard") for _, r in entries]
        record = {**record, "at": record.get("sampled_at") or record.get("at")}
        if record.get("replicas") == len(ranks) == len(entries) and len(set(shards)) < len(shards):
            tracks = [t for t, r in entries if shards.count(r.get("shard")) > 1 and r.get("shard") == shards[0]]
            yield _of(
                Kind.SAME_SHARD, tracks or [entries[0][0]], record, shard=shards[0], replicas=record.get("replicas")
            )
            return
        seeds = {t.rank: r.get("seed") for t, r in entries}
        if record.get("shuffles") is True and len(set(seeds.values())) > 1:
            shown = ", ".join(
                f"{seed} on rank {rank}" for rank, seed in sorted(seeds.items(), key=lambda each: each[0] or 0)[:3]
            )
            yield _of(Kind.ORDERS_DIFFER, [t for t, _ in entries], record, values=shown)
            return


def _second_init(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "second_init", Kind.SECOND_INIT)


def _refused(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "refused", Kind.REFUSED, "op")


def _swallowed(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _each_first(ranks, "swallowed", Kind.SWALLOWED)


def _cpu_tensors(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """CPU tensors in collectives of groups that only have nccl."""
    by_place: dict[object, list[tuple[Track, MadeCall]]] = defaultdict(list)
    for track in ranks:
        if track.backend != "nccl":
            continue
        for call in track.calls.values():
            if any(
                device == "cpu" for key in ("in", "out") for _, _, device in call.tensors(key)
            ) and not _is_of_other_backend(track, call):
                entry = by_place[call.places[:1]]
                if all(t is not track for t, _ in entry):
                    entry.append((track, call))
    for entries in by_place.values():
        yield _of(Kind.CPU_TENSOR, [t for t, _ in entries], entries[0][1].record, operation=entries[0][1].operation)


def _is_of_other_backend(track: Track, call: MadeCall) -> bool:
    """Whether the group of a call was made with another backend than nccl."""
    return any(
        r.get("g") == call.group and r.get("backend") not in (None, "nccl") for r in track.of_kind("group_backend")
    )


def _device_ids(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for track in ranks:
        for record in track.of_kind("ddp"):
            ids, places = record.get("device_ids"), record.get("devices")
            if (
                isinstance(ids, list)
                and ids
                and isinstance(places, list)
                and places
                and f"cuda:{ids[0]}" not in places
                and "cpu" not in places
            ):
                yield _of(Kind.DEVICE_IDS, [track], record, ids=_plain(ids), devices=_plain(places))
                return


def _worlds_of_one(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    joined = [t for t in ranks if t.has_joined and t.index is not None]
    if len(joined) > 1 and all(t.world == 1 for t in joined):
        found = _of(
            Kind.WORLD_OF_ONE, joined, joined[0].joining or {}, given=(joined[0].joining or {}).get("world_given")
        )
        assigned = [r for t in joined for r in t.of_kind("variable") if r.get("what") in ("WORLD_SIZE", "RANK")]
        places = places_of(assigned[0].get("at")) if assigned else ()
        yield replace(found, places=places, other=found.place) if places else found


def _same_rank(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    by_rank: dict[object, list[Track]] = defaultdict(list)
    for track in ranks:
        given = (track.joining or {}).get("rank_given")
        if isinstance(given, int) and given >= 0 and (track.joining or {}).get("world_given") not in (1, None):
            by_rank[given].append(track)
    shared = {rank: tracks for rank, tracks in by_rank.items() if len(tracks) > 1}
    if shared:
        tracks = [t for each in shared.values() for t in each]
        names = ", ".join(map(str, sorted(map(str, shared))))
        yield _of(Kind.SAME_RANK, tracks, tracks[0].joining or {}, rank=names, count=max(map(len, shared.values())))


def _no_destroy(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """The script's own group at the end of the script. One that a library made is that library's to destroy."""
    own = [t for t in ranks if not (t.joining or {}).get("library")]
    left = [t for t in own if t.end is RankEnd.FINISHED and any(r.get("initialized") for r in t.of_kind("left"))]
    if left and len(left) == len(ranks) and all(_uses_nccl(t) for t in left):
        yield _of(Kind.NO_DESTROY, left, left[0].joining or {})


def _epochs(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A DistributedSampler that shuffles and is used for two epochs with one epoch number."""
    found: list[tuple[Track, Record]] = []
    for track in ranks:
        for loader in track.of_kind("loader"):
            if "DistributedSampler" not in str(loader.get("sampler")) or loader.get("shuffles") is not True:
                continue
            epochs = [
                r for r in track.of_kind("epoch") if r.get("loader") == loader.get("loader") and r.get("is_training")
            ]
            if len(epochs) > 1 and len({r.get("epoch") for r in epochs[:2]}) == 1:
                found.append((track, epochs[1]))
                break
    if found:
        yield _of(Kind.EPOCH_NOT_SET, [t for t, _ in found], found[0][1])


def _same_data(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A training loader from which several ranks draw the same samples."""
    if len(ranks) < 2:
        return
    by_loader: dict[object, list[tuple[Track, Record, list[int]]]] = defaultdict(list)
    for track in ranks:
        for loader in track.of_kind("loader"):
            number = loader.get("loader")
            epochs = [r for r in track.of_kind("epoch") if r.get("loader") == number]
            if not epochs or not epochs[0].get("is_training") or _is_sharded(loader) or track.backend == "":
                continue
            rows = [
                row
                for r in track.of_kind("batch")
                if r.get("loader") == number
                for row in r.get("rows", ())
                if isinstance(row, int)
            ]
            by_loader[number, places_of(loader.get("at"))[:1]].append((track, loader, rows))
    for entries in by_loader.values():
        if len(entries) < len(ranks) or not _trains_with_steps(ranks):
            continue
        drawn = [set(each) for _, _, each in entries]
        if any(len(each) < 2 for each in drawn):
            continue
        sizes = {loader.get("size") for _, loader, _ in entries}
        shared = len(set.intersection(*drawn)) / min(map(len, drawn))
        if sizes == {None}:  # a stream: only equal samples in the same order are no coincidence
            is_stream_same = len({tuple(rows[:MOST_COMPARED]) for _, _, rows in entries}) == 1
            if not is_stream_same or not all(t.of_kind("ddp") for t, _, _ in entries):
                continue
        is_ordered = sizes == {None} or all(
            "SequentialSampler" in str(loader.get("sampler")) for _, loader, _ in entries
        )
        is_random = all(
            "RandomSampler" in str(loader.get("sampler")) and not _draws_a_part(loader) for _, loader, _ in entries
        )
        is_random = is_random or len({tuple(rows[:MOST_COMPARED]) for _, _, rows in entries}) == 1
        is_same = (
            shared >= LEAST_SHARED if is_ordered else is_random and len(sizes) == 1 and bool(set.intersection(*drawn))
        )
        if is_same:
            yield _of(
                Kind.SAME_DATA,
                [t for t, _, _ in entries],
                entries[0][1],
                size=entries[0][1].get("size"),
                sampler=str(entries[0][1].get("sampler")).rpartition(".")[2],
                shared=f"{shared:.0%}",
            )
            return


def _is_sharded(loader: Record) -> bool:
    """Whether a sampler or data set of its own may divide the data."""
    names = " ".join(str(loader.get(key)) for key in ("sampler", "batch_sampler", "inner"))
    return "Distributed" in names or loader.get("replicas") is not None


def _trains_with_steps(ranks: Sequence[Track]) -> bool:
    return all(track.steps > 0 for track in ranks)


def _is_averaged(ranks: Sequence[Track], shapes: object) -> bool:
    """Whether the script reduces a tensor for each parameter: it averages the gradients itself."""
    reduced = [
        str(list(shape))
        for t in ranks[:1]
        for c in t.calls.values()
        if "all_reduce" in c.operation and c.group == WORLD
        for _, shape, _ in c.tensors()
    ]
    wanted = [str(shape) for shape in shapes] if isinstance(shapes, list) else []
    return bool(wanted) and all(shape in reduced for shape in wanted) and shares_gradients(ranks) is not False


def _is_alone(ranks: Sequence[Track]) -> bool:
    """Whether no rank ever exchanged more than single numbers and objects: each one trains by itself."""
    calls = (call for track in ranks for call in track.calls.values())
    return all(
        not call.direction
        and call.operation not in ("backward", "forward")
        and all(numel(shape) <= 1 for _, shape, _ in call.tensors())
        for call in calls
        if call.operation != "DistributedDataParallel"
    )


def _draws_a_part(loader: Record) -> bool:
    """Whether a random sampler gives each rank a part of the data set, or samples several times."""
    drawn, size = loader.get("drawn"), loader.get("size")
    return "Weighted" in str(loader.get("sampler")) or (type(drawn) is int and type(size) is int and drawn < size)


def _parameters(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Parameters that differ between ranks after one optimizer step, first seen."""
    joined = [t for t in ranks if t.has_joined and t.of_kind("params")]
    if len(joined) < 2 or len(joined) < len(ranks) or any(t.of_kind("unsynchronized") for t in ranks):
        return
    for records in zip(*(t.of_kind("params") for t in joined), strict=False):
        first = records[0]
        if any(r.get("shapes") != first.get("shapes") or r.get("optimizer") != first.get("optimizer") for r in records):
            return  # each rank has its own part of the model
        different = [at for at in range(len(first["sums"])) if not _close([r["sums"][at] for r in records])]
        if not different:
            continue
        wrapped = [at for at in different if first["names"][at] is not None]
        is_wrapped = bool(first.get("wrapped"))
        if is_wrapped and not wrapped:
            continue  # parameters beside the wrapped model may be local
        is_averaged = not is_wrapped and _is_averaged(ranks, first.get("shapes"))
        if not is_wrapped and not is_averaged and not _is_alone(ranks):
            return  # the ranks may have parts of one model
        kind = Kind.PARAMETERS_DIFFER if is_wrapped or is_averaged else Kind.NOT_WRAPPED
        made = places_of(first.get("made"))
        if not is_wrapped and is_averaged and made and _began_differently(joined, first.get("optimizer")):
            yield replace(
                _of(Kind.NEVER_BROADCAST, joined, {"at": first.get("made")}), other=_of(kind, [], first).place
            )
            return
        name = first["names"][wrapped[0]] if wrapped else None
        changed = [r for t in joined for r in t.of_kind("changed_after_wrap")]
        if is_wrapped and changed and len(changed) < len(joined):
            first = {**first, "at": changed[0].get("loaded") or changed[0].get("at")}
        count = f"{len(different)} of {len(first['sums'])}"
        yield _of(
            kind,
            joined,
            first,
            step=int(first.get("step", 0)) + 1,
            count=count,
            name=name,
            is_wrapped="yes" if is_wrapped else None,
        )
        return


def _began_differently(ranks: Sequence[Track], optimizer: object) -> bool:
    """Whether the parameters of an optimizer differed between ranks when it was made."""
    first = [next((r for r in t.of_kind("initial") if r.get("optimizer") == optimizer), None) for t in ranks]
    if any(each is None or not each.get("sums") for each in first):
        return False
    sums = [each["sums"] for each in first if each is not None]
    return any(not _close([each[at] for each in sums]) for at in range(min(map(len, sums))))


def _bypassed(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """The module inside DDP is called, and steps follow that nothing synchronizes."""
    if any(t.of_kind("unsynchronized") for t in ranks):
        yield from list(_each_first(ranks, "bypassed", Kind.BYPASSED))[:1]


def _unsynchronized(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    if not any(t.of_kind("bypassed") for t in ranks):
        yield from list(_each_first(ranks, "unsynchronized", Kind.UNSYNCHRONIZED))[:1]


def _splits(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _valued(ranks, "split", "digest", Kind.SPLIT_DIFFERS)


def _metrics(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    yield from _valued(ranks, "plateau", "metric", Kind.METRIC_DIFFERS)


def _valued(ranks: Sequence[Track], kind: str, key: str, observed: Kind) -> Iterator[RehearsalObservation]:
    """The first record of a kind, of all ranks in order, in which a value differs between ranks."""
    joined = [t for t in ranks if t.has_joined]
    if len(joined) < 2:
        return
    for records in zip(*(t.of_kind(kind) for t in joined), strict=False):
        if len({places_of(r.get("at"))[:1] for r in records}) == 1 and len({r.get(key) for r in records}) > 1:
            yield _of(observed, joined, records[0])
            return


def _close(sums: Sequence[Sequence[float]]) -> bool:
    first = sums[0]
    scale = max(abs(first[1]), 1e-6)
    return all(
        abs(each[0] - first[0]) <= TOLERANCE * scale and abs(each[1] - first[1]) <= TOLERANCE * scale for each in sums
    )


def _early_reads(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    for each in _each_first(ranks, "early_read", Kind.EARLY_READ, "operation", "used"):
        started = next(
            (r.get("started") for t in ranks for r in t.of_kind("early_read") if places_of(r.get("at")) == each.places),
            None,
        )
        places = places_of(started)
        yield RehearsalObservation(each.kind, each.ranks, each.places, places[0] if places else None, each.values)


def _not_waited(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    by_place: dict[object, list[tuple[Track, MadeCall]]] = defaultdict(list)
    for track in ranks:
        for record in track.of_kind("left"):
            for number in record.get("unwaited", ()):
                call = track.calls.get(number)
                if call is not None and call.direction and not call.is_waited_for:
                    by_place[call.places[:1]].append((track, call))
    for entries in by_place.values():
        tracks = list({t.key: t for t, _ in entries}.values())
        yield _of(Kind.NOT_WAITED, tracks, entries[0][1].record, operation=entries[0][1].operation)


def _aliased(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    by_place: dict[object, list[tuple[Track, MadeCall]]] = defaultdict(list)
    for track in ranks:
        for call in track.calls.values():
            if call.record.get("aliased"):
                by_place[call.places[:1]].append((track, call))
    for entries in by_place.values():
        tracks = list({t.key: t for t, _ in entries}.values())
        yield _of(
            Kind.ALIASED,
            tracks,
            entries[0][1].record,
            operation=entries[0][1].operation,
            count=entries[0][1].record["aliased"],
        )


def _checkpoints(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """One path that several ranks of a node save to without a collective between them."""
    by_path: dict[tuple[int | None, str], list[tuple[Track, Record]]] = defaultdict(list)
    for track in (t for t in ranks if t.rank is not None):
        for record in track.of_kind("save"):
            entry = by_path[track.node, str(record.get("path"))]
            if all(t is not track for t, _ in entry):
                entry.append((track, record))
    for (_, path), entries in by_path.items():
        if len(entries) > 1 and not _are_ordered([(t, r) for t, r in entries]):
            yield _of(Kind.CHECKPOINT_RACE, [t for t, _ in entries], entries[0][1], path=path)


def _are_ordered(entries: Sequence[tuple[Track, Record]]) -> bool:
    """Whether collectives lie between the accesses: each rank was at another number of its calls."""
    counts = [collectives_before(t, r) for t, r in entries]
    return len(set(counts)) == len(counts)


def _files(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """One file that several ranks of a node open for writing without a collective between them."""
    saved = {str(r.get("path")) for t in ranks for r in t.of_kind("save")}
    by_path: dict[tuple[int | None, str], list[tuple[Track, Record]]] = defaultdict(list)
    for track in (t for t in ranks if t.rank is not None):
        for record in track.of_kind("file"):
            if (
                record.get("what") == "write"
                and str(record.get("path")) not in saved
                and not str(record.get("path")).startswith("/tmp/")
            ):
                entry = by_path[track.node, str(record.get("path"))]
                if all(t is not track for t, _ in entry):
                    entry.append((track, record))
    for (_, path), entries in by_path.items():
        if len(entries) > 1 and not _are_ordered(entries):
            yield _of(Kind.FILE_RACE, [t for t, _ in entries], entries[0][1], path=path)


def _early_loads(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """A file that one rank reads although no collective lies between another rank's write and the read."""
    reads = [
        (t, r) for t in ranks for r in (*t.of_kind("load"), *(f for f in t.of_kind("file") if f.get("what") == "read"))
    ]
    for writer in ranks:
        for saved in (*writer.of_kind("save"), *(f for f in writer.of_kind("file") if f.get("what") == "write")):
            finished = next((r for r in writer.of_kind("saved") if r.get("path") == saved.get("path")), saved)
            for reader, read in reads:
                if reader is writer or read.get("path") != saved.get("path") or reader.node != writer.node:
                    continue
                own = any(
                    r.get("path") == saved.get("path")
                    for r in (*reader.of_kind("save"), *reader.of_kind("file"))
                    if r.get("what") != "read" and r is not read
                )
                if own or (saved.get("exists") and "what" in saved):
                    continue
                if collectives_before(reader, read) <= collectives_before(writer, finished):
                    found = _of(Kind.READ_BEFORE_WRITTEN, [reader], read, path=saved.get("path"), writer=writer.rank)
                    places = places_of(saved.get("at"))
                    yield RehearsalObservation(
                        found.kind, found.ranks, found.places, places[0] if places else None, found.values
                    )
                    return


def _uneven_loaders(ranks: Sequence[Track]) -> Iterator[RehearsalObservation]:
    """Training loaders with different numbers of batches, where each batch synchronizes gradients."""
    if not any(call.operation == "backward" for t in ranks for call in t.calls.values()):
        return
    if any(t.of_kind("join") for t in ranks):
        return
    by_place: dict[object, list[tuple[Track, Record]]] = defaultdict(list)
    for track in ranks:
        for loader in track.of_kind("loader"):
            trains = any(
                r.get("loader") == loader.get("loader") and r.get("is_training") for r in track.of_kind("epoch")
            )
            if trains and isinstance(loader.get("batches"), int):
                by_place[loader.get("loader"), places_of(loader.get("at"))[:1]].append((track, loader))
    for entries in by_place.values():
        counts = {int(loader["batches"]) for _, loader in entries}
        if len(entries) == len(ranks) and len(counts) > 1:
            least = [t for t, loader in entries if loader["batches"] == min(counts)]
            yield _of(Kind.UNEVEN_LOADERS, least, entries[0][1], least=min(counts), most=max(counts))
            return


_LOOKS = (
    _worlds_of_one,
    _same_rank,
    _second_init,
    _ordinals,
    _same_device,
    _cpu_tensors,
    _two_devices,
    _device_ids,
    _refused,
    _aliased,
    _joins,
    _outside,
    _bad_forks,
    _folders,
    _idle,
    _data_parallel,
    _shards,
    _bypassed,
    _unsynchronized,
    _splits,
    _metrics,
    _early_reads,
    _not_waited,
    _parameters,
    _uneven_loaders,
    _same_data,
    _epochs,
    _checkpoints,
    _files,
    _early_loads,
    _no_destroy,
    _swallowed,
    *LESSER_LOOKS,
    *VALUE_LOOKS,
    *DATA_LOOKS,
    *METRIC_LOOKS,
    *AGREEMENT_LOOKS,
)
