"""What a Flight Recorder dump means: the data of torch 2.2 to 2.15, pickled or JSON, of NCCL, Gloo and others, as one `Dump`.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp (2.13, "2.10") and TraceUtils.h (until 2.6). Fields came and went:
`seq_id` became `collective_seq_id` and `p2p_seq_id`, a group was a number, a name, a pair; JSON writes 0 for no time and
numbers of `pg_status` as text; Gloo's `pg_config` has one entry with the name "".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from ddpdoctor.dumps.file_names import is_own_code, rank_in_name
from ddpdoctor.facts.hang import CallState, Dump, Operation, ProcessGroup

__all__ = ["NOT_DUMPS", "NotADumpError", "dump_of"]

NOT_DUMPS = (
    "holds no Flight Recorder entries",
    "its entries are not a list of records",
    "its entries are not those of a Flight Recorder",
)
"""What data is that is something else."""
MOST_ENTRIES = 1_000_000
MOST_SIZES = 64
_PEERS = re.compile(r"(send|recv) ?(\d+) ?(?:->|<-) ?(\d+|\?)")


SIZES_AND_TYPES = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
ShapeFields = tuple[str, str, int | None, int | None, str, int | None]
"""The first fields of an `Op`: name, sizes as text, elements that go in and come out, types, peer."""
FrameFields = tuple[str | None, int | None, str | None]
"""File, line and function."""
NO_FRAME: FrameFields = (None, None, None)


class NotADumpError(ValueError):
    """The data is not what a Flight Recorder writes."""


def dump_of(source: str, raw: object) -> Dump:
    """The dump in data that was read from `source`.

    Raises:
        NotADumpError: it is something else.
    """
    content = {"entries": raw} if isinstance(raw, list) else raw
    if not isinstance(content, dict) or not ({"entries", "pg_config", "pg_status"} & content.keys()):
        raise NotADumpError(NOT_DUMPS[0])
    entries = content.get("entries", ())
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, dict) for entry in entries):
        raise NotADumpError(NOT_DUMPS[1])
    if entries and not any("profiling_name" in entry or "state" in entry for entry in entries[:4]):
        raise NotADumpError(NOT_DUMPS[2])
    reading = _Columns(content)
    for entry in entries[-MOST_ENTRIES:]:
        reading.add(entry)
    rank = _number(content.get("rank"))
    return reading.dump(source, rank if rank is not None else rank_in_name(source))


class _Columns:
    """The columns while they grow; equal calls and groups are kept once."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.configured = _configured(content.get("pg_config"))
        status = content.get("pg_status")
        self.status: dict[str, Any] = status if isinstance(status, dict) else {}
        self.groups: dict[tuple[str, str, str], int] = {}
        self.found: list[ProcessGroup] = []
        self.seen_groups: dict[str, int] = {}
        self.seen_shapes: dict[str, ShapeFields] = {}
        self.ops: dict[tuple[ShapeFields, FrameFields], int] = {}
        self.made: list[Operation] = []
        self.stacks: dict[tuple[int, ...], FrameFields] = {}
        self.records: list[int] = []
        self.group_of: list[int] = []
        self.sequences: list[int] = []
        self.op_of: list[int] = []
        self.states: list[str] = []
        self.p2p: list[bool] = []
        self.times: list[int] = []
        self.open: dict[tuple[int, bool, int], list[int]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        """Take in one entry."""
        backend, _, name = str(entry.get("profiling_name") or "?").rpartition(":")
        name = name[:200]
        is_p2p = bool(entry.get("is_p2p", name.startswith(("send", "recv"))))
        sequence = _number(entry.get("p2p_seq_id")) if is_p2p else _number(entry.get("collective_seq_id"))
        if sequence is None:
            sequence = _number(entry.get("seq_id"))
        group = self._group(entry, backend)
        record = _number(entry.get("record_id"))
        self.records.append(len(self.records) if record is None else record)
        self.group_of.append(group)
        self.sequences.append(-1 if sequence is None else sequence)
        self.op_of.append(self._op(entry, name))
        self.states.append(_state(entry, backend))
        self.p2p.append(is_p2p)
        created = _number(entry.get("time_created_ns"))
        if created:
            self.times.append(created)
        # The parts of a coalesced call have no state of their own: the entry that ends them has it.
        key = (group, is_p2p, self.sequences[-1])
        parts = self.open.setdefault(key, [])
        if name.endswith("coalesced"):
            for part in parts:
                self.states[part] = self.states[-1]
        parts.append(len(self.records) - 1)

    def _group(self, entry: dict[str, Any], backend: str) -> int:
        """The index of its group; what reads the same is taken apart once."""
        key = repr((entry.get("process_group"), entry.get("pg_name"), entry.get("pg_id"), backend))
        if key not in self.seen_groups:
            self.seen_groups[key] = self._new_group(entry, backend)
        return self.seen_groups[key]

    def _new_group(self, entry: dict[str, Any], backend: str) -> int:
        given = entry.get("process_group", entry.get("pg_name"))
        if isinstance(given, (list, tuple)) and given:
            name, description = str(given[0]), str(given[1]) if len(given) > 1 else ""
        else:
            name, description = str(entry.get("pg_id", "0") if given is None else given), ""
        description = "" if description == "undefined" else description
        key = (name, description, backend)
        if key not in self.groups:
            status = self.status.get(str(entry.get("pg_id")), {})
            status = status if isinstance(status, dict) else {}
            self.groups[key] = len(self.found)
            self.found.append(
                ProcessGroup(
                    name[:200],
                    description[:200],
                    self._ranks(name, description),
                    backend[:40],
                    _number(status.get("last_enqueued_collective")),
                    _number(status.get("last_completed_collective")),
                )
            )
        return self.groups[key]

    def _ranks(self, name: str, description: str) -> tuple[int, ...]:
        if name in self.configured:
            return self.configured[name]
        is_default = name in ("0", "default_pg") or description == "default_pg"
        ranks = self.configured.get("", ())
        return ranks if is_default and ranks == tuple(range(len(ranks))) else ()

    def _op(self, entry: dict[str, Any], name: str) -> int:
        """The index of its call; what reads the same is taken apart once."""
        read = repr([name, *map(entry.get, SIZES_AND_TYPES)])
        shape = self.seen_shapes.get(read)
        if shape is None:
            shape = self.seen_shapes[read] = _shape(name, *map(entry.get, SIZES_AND_TYPES))
        frame = self._own_frame(entry.get("frames"))
        key = (shape, frame)
        if key not in self.ops:
            self.ops[key] = len(self.made)
            self.made.append(_operation(shape, frame))
        return self.ops[key]

    def _own_frame(self, frames: object) -> FrameFields:
        """The innermost frame of the user's code; dumps repeat the same stacks, so each is looked at once."""
        if not isinstance(frames, (list, tuple)):
            return NO_FRAME
        stack = tuple(map(id, frames))
        if stack not in self.stacks:
            known = [frame for frame in frames if isinstance(frame, dict)]
            own = (each for each in known if is_own_code(str(each.get("filename", ""))))
            python = (each for each in known if str(each.get("filename")).endswith(".py"))
            self.stacks[stack] = _frame(next(own, next(python, {})))
        return self.stacks[stack]

    def dump(self, source: str, rank: int | None) -> Dump:
        """All of it."""
        for name, ranks in self.configured.items():
            if name and not any(each.name == name for each in self.found):
                self.found.append(ProcessGroup(name, "", ranks))
        world = next((g.ranks for g in self.found if g.is_default and g.ranks), ())
        return Dump(
            source,
            rank,
            str(self.content.get("version", ""))[:40],
            tuple(self.found),
            tuple(self.made),
            tuple(self.records),
            tuple(self.group_of),
            tuple(self.sequences),
            tuple(self.op_of),
            tuple(self.states),
            tuple(self.p2p),
            min(self.times, default=None),
            max(self.times, default=None),
            len(world) or None,
        )


@functools.lru_cache(1 << 14)
def _operation(shape: ShapeFields, frame: FrameFields) -> Operation:
    """The same for many ranks."""
    return Operation(*shape, *frame)


def _shape(
    name: str, input_sizes: object, output_sizes: object, input_types: object, output_types: object
) -> ShapeFields:
    inputs, outputs = _sizes(input_sizes), _sizes(output_sizes)
    types = _words(input_types) or _words(output_types)
    peers = _PEERS.fullmatch(name)
    return (
        peers[1] if peers else name,
        _text(inputs or outputs),
        _numel(inputs),
        _numel(outputs),
        ", ".join(dict.fromkeys(types)),
        int(peers[3]) if peers and peers[3] != "?" else None,
    )


def _state(entry: dict[str, Any], backend: str) -> str:
    state = entry.get("state")
    if state == "completed":
        return CallState.COMPLETED.value
    if entry.get("retired") is True:
        return CallState.RETIRED.value if backend == "gloo" else CallState.TIMED_OUT.value
    return CallState.STARTED.value if state == "started" else CallState.SCHEDULED.value


def _configured(given: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(given, dict):
        return {}
    found = {}
    for name, each in given.items():
        ranks = each.get("ranks") if isinstance(each, dict) else None
        if isinstance(ranks, str):
            found[str(name)] = tuple(int(word) for word in re.findall(r"\d{1,9}", ranks[:4_000_000]))
        elif isinstance(ranks, (list, tuple)):
            found[str(name)] = tuple(rank for rank in map(_number, ranks) if rank is not None)
    return found


def _number(value: object) -> int | None:
    if type(value) is int:  # True is none
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return None


def _sizes(given: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(given, (list, tuple)):
        return ()
    return tuple(
        tuple([size for size in each if type(size) is int]) if type(each) in (list, tuple) else ()
        for each in given[:MOST_SIZES]
    )


def _words(given: object) -> tuple[str, ...]:
    return tuple([str(word)[:40] for word in given[:MOST_SIZES]]) if isinstance(given, (list, tuple)) else ()


def _numel(sizes: Iterable[tuple[int, ...]]) -> int | None:
    total = None
    for each in sizes:
        product = 1
        for size in each:
            product *= size
        total = product + (total or 0)
    return total


def _text(sizes: tuple[tuple[int, ...], ...]) -> str:
    words = [f"[{', '.join(map(str, size))}]" for size in sizes[:3]]
    return ", ".join(words) + (f", … {len(sizes)} tensors" if len(sizes) > 3 else "")


def _frame(frame: dict[str, Any]) -> FrameFields:
    file = str(frame.get("filename", ""))[:500]
    return (file, _number(frame.get("line")), str(frame.get("name", ""))[:200]) if file else NO_FRAME
