"""Whether two calls of one group fit each other, and which sends belong to which receives."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.rehearsal import DifferenceKind
from ddpdoctor.sequences.tracks import MadeCall, Track, numel

__all__ = ["buffers_differ", "unlike"]

SAME_INPUT = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "all_gather_into_tensor",
    "all_gather_base",
    "reduce_scatter_tensor",
    "reduce_scatter_base",
    "reduce_scatter",
    "all_gather_tensor",
    "all_gather_single",
    "reduce_scatter_single",
)
"""Collectives in which all ranks pass the same number of elements."""

Kind = DifferenceKind


def unlike(one: MadeCall, other: MadeCall, members: Sequence[int], ranks: tuple[int, int]) -> Kind | None:
    """How two calls with the same number in one group differ, None if they fit. `ranks` are the global ranks of the two."""
    if one.operation != other.operation:
        return Kind.ORDER
    for key, kind in (("ranks", Kind.GROUPS), ("digest", Kind.MODELS), ("root", Kind.ROOT), ("red", Kind.REDUCTION)):
        if one.record.get(key) != other.record.get(key):
            return kind
    if one.operation == "broadcast_object_list" and one.record.get("objects") != other.record.get("objects"):
        return Kind.LENGTH
    return _tensors_differ(one, other, members, ranks)


def _tensors_differ(one: MadeCall, other: MadeCall, members: Sequence[int], ranks: tuple[int, int]) -> Kind | None:
    first, second = one.tensors(), other.tensors()
    if first and second:
        if one.operation in SAME_INPUT and len(first) != len(second):
            return Kind.LENGTH
        if {dtype for dtype, _, _ in first} != {dtype for dtype, _, _ in second}:
            return Kind.DTYPE
        if one.operation in SAME_INPUT:
            sizes = [[numel(shape) for _, shape, _ in each] for each in (first, second)]
            return None if sizes[0] == sizes[1] else Kind.SHAPE
    if any(rank not in members for rank in ranks):
        return None
    at = (members.index(ranks[0]), members.index(ranks[1]))
    for sender, receiver, theirs, own in ((one, other, at[0], at[1]), (other, one, at[1], at[0])):
        found = _pair_differs(sender, receiver, theirs, own)
        if found is not None:
            return found
    return None


def _pair_differs(sender: MadeCall, receiver: MadeCall, sender_at: int, receiver_at: int) -> Kind | None:
    """Whether what one rank passes in fits what another expects from it."""
    given, expected = sender.tensors(), receiver.tensors("out")
    if sender.operation == "all_gather" and given and len(expected) > sender_at:
        return _unequal(given[0], expected[sender_at])
    if sender.operation == "all_to_all" and len(given) > receiver_at and len(expected) > sender_at:
        return _unequal(given[receiver_at], expected[sender_at])
    if sender.operation == "scatter" and len(given) > receiver_at and expected:
        return _unequal(given[receiver_at], expected[0])
    if sender.operation == "all_to_all_single":
        splits, wanted = sender.record.get("splits_in"), receiver.record.get("splits_out")
        if (
            isinstance(splits, list)
            and isinstance(wanted, list)
            and len(splits) > receiver_at
            and len(wanted) > sender_at
        ):
            return None if splits[receiver_at] == wanted[sender_at] else Kind.SHAPE
    return None


def _unequal(one: tuple[str, tuple[int, ...], object], other: tuple[str, tuple[int, ...], object]) -> Kind | None:
    if one[0] != other[0]:
        return Kind.DTYPE
    return None if numel(one[1]) == numel(other[1]) else Kind.SHAPE


def buffers_differ(tracks: Sequence[Track]) -> tuple[Track, MadeCall, Track, MadeCall] | None:
    """The first send and its receive that differ in size or dtype: sender, send, receiver, receive."""
    by_rank = {track.rank: track for track in tracks if track.rank is not None}
    for sender in by_rank.values():
        for peer in by_rank.values():
            sends = [c for c in sender.transfers if c.direction == "send" and c.peer == peer.rank]
            receives = [c for c in peer.transfers if c.direction == "recv" and c.peer == sender.rank]
            if any(c.direction == "recv" and c.peer is None for c in peer.transfers):
                continue  # it receives from anyone: the pairs are not known
            for send, receive in _pairs(sends, receives):
                given, expected = send.tensors(), receive.tensors()
                if (
                    given
                    and expected
                    and (given[0][0] != expected[0][0] or numel(given[0][1]) != numel(expected[0][1]))
                ):
                    return sender, send, peer, receive
    return None


def _pairs(sends: Sequence[MadeCall], receives: Sequence[MadeCall]) -> list[tuple[MadeCall, MadeCall]]:
    """Sends and receives of one pair of ranks, matched in order within each group and tag."""
    pairs = []
    waiting: dict[tuple[str, object], list[MadeCall]] = {}
    for receive in receives:
        waiting.setdefault((receive.group, receive.record.get("tag")), []).append(receive)
    for send in sends:
        fitting = waiting.get((send.group, send.record.get("tag")))
        if fitting:
            pairs.append((send, fitting.pop(0)))
    return pairs


def unmatched(call: MadeCall, track: Track, rank: int, peer: Track) -> bool:
    """Whether the peer has not made the counterpart of this send or receive."""
    counterpart = "recv" if call.direction == "send" else "send"
    theirs = [
        c for c in peer.transfers if c.direction == counterpart and c.peer in (rank, None) and c.group == call.group
    ]
    before = [
        c for c in track.transfers if c.direction == call.direction and c.peer == call.peer and c.group == call.group
    ]
    return len(theirs) <= before.index(call)
