"""Numbers of ranks: in the job, in a group, on a node; and which of them each call expects.

| call | parameter | number |
|---|---|---|
| send, recv, broadcast, reduce, gather, scatter and their object versions, P2POp | dst, src, peer | of the job |
| the same | group_dst, group_src, group_peer | in the group |
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import SAME, UNKNOWN, DiffersBy, Traced, TracedKind

if TYPE_CHECKING:
    from ddpdoctor.scripts.histories.executor import Executor

__all__ = ["check_peers", "number_of_rank"]

_PEERS = {
    "dist.send": ("dst", 1), "dist.isend": ("dst", 1), "dist.recv": ("src", 1), "dist.irecv": ("src", 1),
    "dist.broadcast": ("src", 1), "dist.reduce": ("dst", 1), "dist.gather": ("dst", 2), "dist.scatter": ("src", 2),
    "dist.broadcast_object_list": ("src", 1), "dist.gather_object": ("dst", 2), "dist.scatter_object_list": ("src", 2),
    "dist.send_object_list": ("dst", 1), "dist.recv_object_list": ("src", 1), "dist.P2POp": ("peer", 2),
}  # fmt: skip
"""The parameter that takes a rank of the job, and its position."""
_IN_GROUP = ("group_dst", "group_src", "group_peer")


def number_of_rank(ex: Executor, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    """The result of a function that returns a rank or a size of a group; None for anything else."""
    group = kw.get("group") or (args[0] if args else None)
    is_world = group is None or group.symbol == ("constant", None) or group.constant == "dist.group.WORLD"
    if name == "dist.get_rank" and not is_world and group is not None:
        known = group.kind is TracedKind.GROUP and not _begins_at_zero(group)
        marks = frozenset(("group-rank",)) if known else frozenset[str]()
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), False, marks=marks)
    if name == "dist.get_world_size" and not is_world:
        return replace(UNKNOWN, kind=TracedKind.NUMBER, marks=frozenset(("group-size",)))
    if name == "dist.get_group_rank" and args:
        marks = frozenset(("group-rank",)) if not _begins_at_zero(args[0]) else frozenset[str]()
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), False, marks=marks)
    if name == "dist.get_global_rank":
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), False)
    if name == "dist.get_process_group_ranks":
        return Traced(TracedKind.LIST, fields={"item": replace(SAME, certain=False)})
    return None


def _begins_at_zero(group: Traced) -> bool:
    """Whether a group has the ranks 0, 1, …: then both numbers of a rank are equal."""
    ranks = group.fields.get("ranks")
    if ranks is None:
        return True
    if ranks.items is not None:
        return all(v.constant == i for i, v in enumerate(ranks.items))
    symbol = ranks.symbol
    return isinstance(symbol, tuple) and symbol[:1] == ("range",) and len(symbol) == 2


def check_peers(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> None:
    """The root or peer of a call: a number of the kind that the parameter expects."""
    known = _PEERS.get(name)
    if known is None:
        return
    parameter, position = known
    given = kw.get(parameter) or (args[position] if position < len(args) else None)
    if given is not None and given.has("group-rank"):
        ex.mistake(MistakeKind.GROUP_RANK_AS_GLOBAL, node)
    for word in _IN_GROUP:
        other = kw.get(word)
        if other is not None and other.certain and other.constant == "rank" and other.kind is TracedKind.NUMBER:
            ex.mistake(MistakeKind.GLOBAL_RANK_AS_GROUP, node)
