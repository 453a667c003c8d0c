"""The calls of all ranks, compared as they are made: the first difference ends a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpdoctor.facts.rehearsal import CodePlace, Difference, DifferenceKind, RankEnd, Side
from ddpdoctor.sequences.matching import buffers_differ, unlike, unmatched
from ddpdoctor.sequences.records import Record, places_of
from ddpdoctor.sequences.tracks import WORLD, MadeCall, Track, members_of

__all__ = ["Comparison"]

MOST_KEPT = 4000
"""Records of one kind that are kept per process."""
Kind = DifferenceKind


class Comparison:
    """What the processes of one rehearsal did so far. `expected` is the number of ranks, None where the script decides it."""

    def __init__(self, expected: int | None) -> None:
        self.expected = expected
        self.tracks: dict[int, Track] = {}
        self.difference: Difference | None = None
        self.found: tuple[str, int, Kind] | None = None
        self.is_uneven_allowed = False
        self.changes = 0
        self._readers: dict[str, Callable[[Track, Record], None]] = {
            "hello": self._hello,
            "rank_process": self._rank_process,
            "joining": self._joining,
            "joined": self._joined,
            "call": self._call,
            "ret": self._returned,
            "begun": self._begun,
            "error": self._failed,
            "wait": self._wait,
            "waited": self._waited,
            "store": self._store,
            "step": self._step,
            "destroy": self._destroy,
            "join": self._join,
            "worker_draws": self._worker_draws,
            "ended": self._ended,
            "left": self._left,
            "gone": self._gone,
            "raised": self._raised,
        }

    @property
    def ranks(self) -> list[Track]:
        """The processes that are ranks, by rank."""
        known = [
            t for t in self.tracks.values() if t.rank is not None and (t.index is not None or t.joining is not None)
        ]
        return sorted(known, key=lambda t: (t.rank or 0, t.key))

    @property
    def world(self) -> int:
        """The size of the world that the ranks joined, or the expected one."""
        joined = [t.world for t in self.tracks.values() if t.world is not None and t.has_joined]
        return max(joined, default=self.expected or len(self.ranks))

    def add(self, key: int, record: Record) -> None:
        """Take one record of the process with this key."""
        track = self.tracks.setdefault(key, Track(key))
        self.changes += 1
        track.last = record if "at" in record else track.last
        reader = self._readers.get(record["k"])
        if reader is not None:
            reader(track, record)
        kept = track.records.setdefault(record["k"], [])
        if len(kept) < MOST_KEPT and record["k"] not in ("call", "ret", "begun", "wait", "waited"):
            kept.append(record)

    def exited(self, index: int, code: int) -> None:
        """A process that the rehearsal started has exited."""
        self.changes += 1
        for track in self.tracks.values():
            if track.index == index:
                track.is_gone, track.exit_code = True, code
                if track.end is RankEnd.RUNNING:
                    track.end = RankEnd.KILLED if code else RankEnd.EXITED
                track.blocked, track.store = (
                    ([], None) if track.end is not RankEnd.KILLED else (track.blocked, track.store)
                )
                self._check_absent()

    def disconnected(self, key: int) -> None:
        """A process has closed its connection: it has exited."""
        track = self.tracks.get(key)
        if track is not None and not track.is_gone and track.index is None:
            self.changes += 1
            track.is_gone = True
            if track.end is RankEnd.RUNNING:
                track.end = RankEnd.KILLED
            self._check_absent()

    # Records

    def _hello(self, track: Track, record: Record) -> None:
        environ = record.get("environ")
        track.pid = record["pid"] if isinstance(record.get("pid"), int) else 0
        if isinstance(environ, dict) and not record.get("forked"):
            track.rank = _number(environ.get("RANK"))

    def _rank_process(self, track: Track, record: Record) -> None:
        track.index = record["index"] if isinstance(record.get("index"), int) else None
        if self.expected is not None and track.index is not None:
            track.rank = track.index

    def _joining(self, track: Track, record: Record) -> None:
        track.joining = record
        given = record.get("rank_given")
        if track.rank is None and isinstance(given, int) and given >= 0:
            track.rank = given

    def _joined(self, track: Track, record: Record) -> None:
        track.has_joined = True
        track.world = _number(record.get("world"))
        rank = _number(record.get("rank"))
        if track.index is None or self.expected is None:
            track.rank = rank
        track.backend = str(record.get("backend", ""))
        if isinstance(record.get("device"), int):
            track.device = f"cuda:{record['device']}"

    def _call(self, track: Track, record: Record) -> None:
        group, operation, number = record.get("g"), record.get("op"), record.get("n")
        if not isinstance(group, str) or not isinstance(operation, str) or not isinstance(number, int):
            return
        if record.get("p2p") in ("send", "recv"):
            call = MadeCall(number, operation, group, -1, record)
            track.transfers.append(call)
            track.calls[number] = call
            track.blocked.append(call)
            self._check_buffers()
            self._check_absent()
            return
        if record.get("soft"):
            call = MadeCall(number, operation, group, -1, record)
            track.calls[number] = call
            track.blocked.append(call)
            return
        sequence = track.sequence(group)
        call = MadeCall(number, operation, group, len(sequence), record)
        sequence.append(call)
        track.calls[number] = call
        track.blocked.append(call)
        self._compare(track, call)
        self._check_absent()

    def _returned(self, track: Track, record: Record) -> None:
        if track.store is not None and track.store.get("n") == record.get("n"):
            track.store = None
        self._finish(track, record.get("n"))

    def _begun(self, track: Track, record: Record) -> None:
        """An asynchronous call returned its work: the process continues."""
        call = track.calls.get(record.get("n", -1))
        if call is not None and call in track.blocked:
            track.blocked.remove(call)

    def _failed(self, track: Track, record: Record) -> None:
        self._finish(track, record.get("n"))

    def _wait(self, track: Track, record: Record) -> None:
        call = track.calls.get(record.get("n", -1))
        if call is not None:
            call.is_waited_for = True
            track.blocked.append(call)
            self._check_absent()

    def _waited(self, track: Track, record: Record) -> None:
        call = track.calls.get(record.get("n", -1))
        if call is not None:
            call.is_waited_for = True
        self._finish(track, record.get("n"))

    def _finish(self, track: Track, number: object) -> None:
        call = track.calls.get(number) if isinstance(number, int) else None
        if call is not None:
            call.is_over = True
            while call in track.blocked:
                track.blocked.remove(call)

    def _store(self, track: Track, record: Record) -> None:
        track.store = record

    def _step(self, track: Track, record: Record) -> None:
        track.steps = _number(record.get("count")) or track.steps

    def _destroy(self, track: Track, record: Record) -> None:
        track.destroyed.add(str(record.get("g", "")))
        self._check_absent()

    def _join(self, track: Track, record: Record) -> None:
        self.is_uneven_allowed = True

    def _worker_draws(self, track: Track, record: Record) -> None:
        """What a worker of a data loader reports belongs to the rank that started it."""
        for rank in self.ranks:
            if rank is not track and rank.pid == record.get("parent"):
                rank.records.setdefault("worker_draws", []).append(record)

    def _ended(self, track: Track, record: Record) -> None:
        track.end, track.has_left = RankEnd.ENDED, True

    def _left(self, track: Track, record: Record) -> None:
        how = record.get("how")
        track.has_left = True
        if track.end is RankEnd.RUNNING:
            track.end = RankEnd.FINISHED if how == "end" else RankEnd.EXITED if how == "exit" else RankEnd.ENDED
        track.exit_code = _number(record.get("code"))
        track.end_places = places_of(record.get("at"))
        track.blocked, track.store = [], None
        self._check_absent()

    def _gone(self, track: Track, record: Record) -> None:
        track.is_gone = True

    def _raised(self, track: Track, record: Record) -> None:
        track.raised, track.end = record, RankEnd.RAISED
        track.blocked, track.store = [], None

    # Comparisons

    def _compare(self, track: Track, call: MadeCall) -> None:
        """Compare a new collective with those of the other members that have the same number."""
        if self.found is not None or self.is_uneven_allowed or track.rank is None:
            return
        members = members_of(call.group, self.world)
        for other in self.ranks:
            if other is track or other.rank is None:
                continue
            theirs = other.sequences.get(call.group, ())
            if len(theirs) <= call.index:
                continue
            kind = unlike(call, theirs[call.index], members, (track.rank, other.rank))
            if kind is not None:
                self.found = (call.group, call.index, kind)
                return

    def _check_buffers(self) -> None:
        if self.found is not None or self.difference is not None:
            return
        pair = buffers_differ(self.ranks)
        if pair is not None:
            sender, send, receiver, receive = pair
            sides = (self._side([receiver], receive), self._side([sender], send))
            self.difference = Difference(Kind.BUFFER, 0, _ranks([sender, receiver]), sides)

    def _check_absent(self) -> None:
        """Whether a process waits for one that will never arrive."""
        if self.found is not None or self.difference is not None or self.is_uneven_allowed:
            return
        for track in self.ranks:
            for call in track.blocked:
                found = self._absent_transfer(track, call) if call.direction else self._absent_collective(call)
                if found is not None:
                    self.difference = found
                    return
        self._check_joining()

    def _absent_collective(self, call: MadeCall) -> Difference | None:
        members = members_of(call.group, self.world)
        absent = [t for t in self.ranks if t.rank in members and self._never_comes(t, call.group, call.index)]
        if not absent:
            return None
        if any(t.end in (RankEnd.ENDED, RankEnd.RAISED, RankEnd.KILLED) for t in absent):
            return None  # that is the cause, or the intended end
        present = [t for t in self.ranks if len(t.sequences.get(call.group, ())) > call.index]
        sides = (
            Side(_ranks(absent), None, "left", _last_places(absent[0])),
            *self._sides_of_calls(present, call.group, call.index),
        )
        return Difference(Kind.LEFT, call.index + 1, members, sides)

    def _never_comes(self, track: Track, group: str, index: int) -> bool:
        is_over = track.is_done or group in track.destroyed or WORLD in track.destroyed
        return is_over and len(track.sequences.get(group, ())) <= index

    def _absent_transfer(self, track: Track, call: MadeCall) -> Difference | None:
        peer = next((t for t in self.ranks if t.rank == call.peer), None)
        if peer is None or track.rank is None or not (peer.is_done or WORLD in peer.destroyed):
            return None
        if peer.end in (RankEnd.ENDED, RankEnd.RAISED, RankEnd.KILLED) or not unmatched(call, track, track.rank, peer):
            return None
        sides = (self._side([track], call), Side(_ranks([peer]), None, "left", _last_places(peer)))
        return Difference(Kind.UNMATCHED, 0, _ranks([track, peer]), sides)

    def _check_joining(self) -> None:
        """Whether ranks wait for others to join that have ended without joining."""
        waiting = [t for t in self.ranks if t.joining is not None and not t.has_joined and not t.is_done]
        gone = [t for t in self.ranks if t.joining is None and t.is_done]
        if not waiting or not gone or any(t.end in (RankEnd.ENDED, RankEnd.RAISED, RankEnd.KILLED) for t in gone):
            return
        self.difference = self._joining_difference(waiting, gone)

    def _joining_difference(self, waiting: list[Track], others: list[Track]) -> Difference:
        first = waiting[0]
        call = MadeCall(0, "init_process_group", WORLD, 0, first.joining or {})
        absent = Side(_ranks(others), None, "did not call it", _last_places(others[0]))
        return Difference(Kind.LEFT, 1, tuple(range(self.world)), (absent, self._side(waiting, call)))

    # Results

    def settled(self) -> Difference | None:
        """The first difference, with what all members did at that point; call it after a short grace."""
        if self.difference is None and self.found is not None:
            group, index, kind = self.found
            present = [t for t in self.ranks if len(t.sequences.get(group, ())) > index]
            sides = self._sides_of_calls(present, group, index, kind)
            absent = [
                t for t in self.ranks if t not in present and t.rank in members_of(group, self.world) and t.is_done
            ]
            if absent:
                sides = (*sides, Side(_ranks(absent), None, "left", _last_places(absent[0])))
            self.difference = Difference(kind, index + 1, members_of(group, self.world), sides)
        return self.difference

    def stalled(self) -> Difference | None:
        """What the processes wait for if all of them wait, None if some process could still continue."""
        ranks = self.ranks
        if self.settled() is not None:
            return self.difference
        active = [t for t in ranks if not t.is_done]
        if not active or not all(t.is_blocked for t in active):
            return None
        return self._transfers_stalled(active) or self._collectives_stalled(active) or self._joining_stalled(active)

    def waiting_for(self, tracks: Iterable[Track]) -> Difference | None:
        """The difference if these processes, which are in their own code, never arrive: not certain."""
        late = list(tracks)
        for track in self.ranks:
            for call in track.blocked:
                if call.direction:
                    continue
                members = members_of(call.group, self.world)
                absent = [t for t in late if t.rank in members and len(t.sequences.get(call.group, ())) <= call.index]
                if absent:
                    present = [t for t in self.ranks if len(t.sequences.get(call.group, ())) > call.index]
                    first = Side(_ranks(absent), None, "elsewhere", _last_places(absent[0]))
                    sides = (first, *self._sides_of_calls(present, call.group, call.index))
                    return Difference(Kind.ABSENT, call.index + 1, members, sides, is_certain=False)
        return None

    @property
    def can_never_join(self) -> bool:
        """Whether all processes are joining, and what they passed cannot make one world."""
        waiting = [t for t in self.tracks.values() if t.joining is not None and not t.is_done]
        joining = [t.joining or {} for t in waiting]
        sizes = [r["world_given"] for r in joining if isinstance(r.get("world_given"), int)]
        expected = self.expected or max(sizes, default=0)
        if not waiting or len(waiting) < expected or all(t.has_joined for t in waiting):
            return False
        if any(len({str(r.get(key)) for r in joining}) > 1 for key in ("port", "method", "world_given", "backend")):
            return True
        given = [r["rank_given"] for r in joining if isinstance(r.get("rank_given"), int) and r["rank_given"] >= 0]
        size = joining[0].get("world_given")
        is_outside = isinstance(size, int) and 0 < size <= max(given, default=-1)
        return is_outside or len(set(given)) < len(given)

    @property
    def is_waiting_to_join(self) -> bool:
        """Whether all ranks that are known wait for others to join."""
        ranks = [t for t in self.ranks if not t.is_done]
        return bool(ranks) and all(t.joining is not None and not t.has_joined for t in ranks)

    def _transfers_stalled(self, active: list[Track]) -> Difference | None:
        for track in active:
            for call in track.blocked:
                peer = next((t for t in active if t.rank == call.peer), None) if call.direction else None
                if peer is None or track.rank is None or not unmatched(call, track, track.rank, peer):
                    continue
                theirs = next((c for c in peer.blocked if c.direction == call.direction and c.peer == track.rank), None)
                if theirs is not None:
                    both = (self._side([track], call), self._side([peer], theirs))
                    return Difference(Kind.SEND_ORDER, 0, _ranks([track, peer]), both)
                instead = peer.blocked[0] if peer.blocked else None
                if instead is not None and instead.direction and self._is_ring(track, active):
                    sides = tuple(self._side([t], t.blocked[0]) for t in active if t.blocked and t.blocked[0].direction)
                    return Difference(Kind.SEND_ORDER, 0, _ranks(active), sides)
                other = (
                    self._side([peer], instead)
                    if instead is not None
                    else Side(_ranks([peer]), None, "elsewhere", _last_places(peer))
                )
                return Difference(Kind.UNMATCHED, 0, _ranks([track, peer]), (self._side([track], call), other))
        return None

    def _is_ring(self, track: Track, active: list[Track]) -> bool:
        """Whether following the peers of blocked sends or receives of one direction comes back to the first rank."""
        by_rank = {t.rank: t for t in active}
        seen: set[int | None] = set()
        walked: Track | None = track
        direction = track.blocked[0].direction
        while walked is not None and walked.rank not in seen:
            seen.add(walked.rank)
            call = walked.blocked[0] if walked.blocked else None
            if call is None or call.direction != direction:
                return False
            walked = by_rank.get(call.peer)
        return walked is not None

    def _collectives_stalled(self, active: list[Track]) -> Difference | None:
        for track in active:
            for call in track.blocked:
                if call.direction:
                    continue
                members = members_of(call.group, self.world)
                absent = [
                    t for t in self.ranks if t.rank in members and len(t.sequences.get(call.group, ())) <= call.index
                ]
                elsewhere = [t for t in absent if t.is_blocked and t.end is RankEnd.RUNNING]
                if not elsewhere:
                    continue
                sides = []
                for each in elsewhere:
                    instead = each.blocked[0] if each.blocked else None
                    sides.append(
                        self._side([each], instead)
                        if instead
                        else Side(_ranks([each]), None, _doing(each), _last_places(each))
                    )
                present = [t for t in self.ranks if len(t.sequences.get(call.group, ())) > call.index]
                merged = (*_merged(sides), *self._sides_of_calls(present, call.group, call.index))
                is_soft = any(t.blocked and t.blocked[0].record.get("soft") for t in elsewhere)
                kind = Kind.ORDER if is_soft else Kind.CYCLE if all(s.call is not None for s in sides) else Kind.ABSENT
                return Difference(kind, call.index + 1, members, merged)
        return None

    def _joining_stalled(self, active: list[Track]) -> Difference | None:
        waiting = [t for t in active if t.joining is not None and not t.has_joined]
        others = [t for t in active if t not in waiting]
        return self._joining_difference(waiting, others) if waiting and others else None

    def _sides_of_calls(
        self, tracks: list[Track], group: str, index: int, kind: Kind | None = None
    ) -> tuple[Side, ...]:
        """The ranks by what they called at this number, the smallest side first."""
        sides: dict[tuple[object, ...], list[Track]] = {}
        for track in tracks:
            call = track.sequences[group][index]
            sides.setdefault(_signature(call, kind), []).append(track)
        ordered = sorted(sides.values(), key=lambda each: (len(each), each[0].rank or 0))
        return tuple(self._side(each, each[0].sequences[group][index]) for each in ordered)

    def _side(self, tracks: list[Track], call: MadeCall) -> Side:
        return Side(_ranks(tracks), call.seen(self.world), "", call.places)


def _signature(call: MadeCall, kind: Kind | None) -> tuple[object, ...]:
    """What makes two calls the same side of a difference."""
    record, place = call.record, call.places[:1]
    tensors = [(dtype, shape) for dtype, shape, _ in call.tensors()]
    out = [(dtype, shape) for dtype, shape, _ in call.tensors("out")]
    whole = (
        call.operation,
        place,
        record.get("root"),
        record.get("red"),
        str(record.get("ranks")),
        record.get("digest"),
        record.get("objects"),
    )
    return (*whole, str(tensors), str(out)) if kind in (None, Kind.SHAPE, Kind.DTYPE, Kind.LENGTH) else whole


def _merged(sides: list[Side]) -> tuple[Side, ...]:
    """Sides with the same place as one."""
    found: dict[tuple[object, ...], Side] = {}
    for side in sides:
        key = (side.place, side.state, side.call.operation if side.call is not None else None)
        old = found.get(key)
        found[key] = side if old is None else Side((*old.ranks, *side.ranks), old.call, old.state, old.places)
    return tuple(found.values())


def _doing(track: Track) -> str:
    if track.store is not None:
        return f"in store.{track.store.get('op', 'get')}"
    return "in init_process_group" if track.joining is not None and not track.has_joined else "elsewhere"


def _last_places(track: Track) -> tuple[CodePlace, ...]:
    return track.end_places or places_of((track.last or {}).get("at"))


def _ranks(tracks: Iterable[Track]) -> tuple[int, ...]:
    return tuple(sorted(t.rank for t in tracks if t.rank is not None))


def _number(value: object) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None
