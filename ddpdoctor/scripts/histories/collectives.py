"""What the calls of torch.distributed do to values: the table of legal orders of tensors, handles and groups.

| tensor | all_reduce SUM | all_reduce AVG | divided by the world size | by the GPUs of a node | added to |
|---|---|---|---|---|---|
| local | summed | averaged | scaled | scaled | local |
| summed | summed | | averaged | missing: DIVIDED_BY_NODE | summed and added |
| averaged | | averaged | missing: AVERAGED_TWICE | | averaged and added |
| summed and added | missing: TOTAL_REDUCED_AGAIN | | | | |

A loss that was reduced in place, or divided by the world size, has no edge to the backward pass of DDP.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from ddpdoctor.scripts.histories import quantities
from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.rank_numbers import check_peers
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import SAME, UNKNOWN, DiffersBy, Power, Traced, TracedKind

__all__ = ["collective"]

_IN_PLACE = ("dist.all_reduce", "dist.broadcast", "dist.all_reduce_coalesced")
_LISTS = ("dist.all_gather", "dist.all_gather_object", "dist.broadcast_object_list", "dist.all_gather_into_tensor")
_OTHERS = (
    "dist.reduce", "dist.gather", "dist.scatter", "dist.reduce_scatter", "dist.reduce_scatter_tensor", "dist.all_to_all",
    "dist.all_to_all_single", "dist.gather_object", "dist.scatter_object_list", "dist.monitored_barrier",
)  # fmt: skip
_GROUPS = {"dist.all_reduce": 2, "dist.broadcast": 2, "dist.all_gather": 2, "dist.barrier": 0, "dist.reduce": 3}


def collective(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    """One call of torch.distributed; None for anything else."""
    check_peers(ex, node, name, args, kw)
    if name == "dist.new_group":
        ex.communicate("new_group", node)
        return ex.new(Traced(TracedKind.GROUP, certain=True, fields={"ranks": args[0]} if args else {}), node)
    if name in ("dist.init_device_mesh", "dist.device_mesh.init_device_mesh"):
        return _mesh(ex, node, kw)
    if name == "dist.barrier":
        ex.barrier()
        ex.communicate(name, node, _group(ex, name, args, kw))
        return UNKNOWN
    if name.endswith("DTensor.from_local"):
        return _from_local(ex, node, args, kw)
    if name.startswith("dist.nn."):
        ex.communicate(name, node, _group(ex, name, args, kw))
        return ex.new(Traced(TracedKind.TENSOR, certain=False, trains=args[0].trains if args else frozenset()), node)
    if name not in (*_IN_PLACE, *_LISTS, *_OTHERS) or not (args or kw):
        return None
    group = _group(ex, name, args, kw)
    ex.communicate(name, node, group)
    if group is None:
        ex.barrier()
        if "join" in ex.contexts and "throws" not in ex.contexts and ex.depth:
            ex.mistake(MistakeKind.COLLECTIVE_IN_JOIN, node)
    _root(ex, node, name, args, kw)
    _outsiders(ex, node, name, args, kw)
    _lists(ex, node, name, args, kw, group)
    first = args[0] if args else next(iter(kw.values()))
    if name in _IN_PLACE:
        _changed(ex, node, name, first, args, kw, group)
    elif name in ("dist.all_gather", "dist.all_gather_into_tensor"):
        source = args[1] if len(args) > 1 else kw.get("tensor", kw.get("input_tensor", UNKNOWN))
        _gathered(ex, node, first, source, group)
    elif name in _LISTS:
        agreed = {"agreed"} if group is None else set()
        ex.change(first, origins=frozenset(), certain=False, items=None, marks=ex.now(first).marks | agreed)
    elif name == "dist.all_to_all_single":
        splits = kw.get("output_split_sizes") or (args[2] if len(args) > 2 else None)
        sent = kw.get("input_split_sizes") or (args[3] if len(args) > 3 else None)
        both = [
            s for s in (splits, sent) if s is not None and s.certain and s.origins & {DiffersBy.DATA, DiffersBy.RANK}
        ]
        own = [s for s in both if DiffersBy.DATA in s.origins]
        if len(own) == 2 or (len(both) == 2 and both[0].ref and both[0].ref == both[1].ref):
            ex.mistake(MistakeKind.SPLITS_NOT_EXCHANGED, node)
        ex.change(first, certain=False)
    else:
        ex.forget([first])
    is_async = kw.get("async_op")
    if is_async is not None and is_async.constant is True:
        return ex.new(Traced(TracedKind.HANDLE, certain=True, marks=frozenset(("unwaited",))), node)
    return UNKNOWN


def _group(ex: Executor, name: str, args: list[Traced], kw: dict[str, Traced]) -> object:
    position = _GROUPS.get(name)
    group = kw.get("group") or (args[position] if position is not None and position < len(args) else None)
    if (
        group is None
        or (group.kind is TracedKind.CONSTANT and group.constant is None)
        or group.constant == "dist.group.WORLD"
    ):
        return None
    return id(group.made) if group.made is not None else group.ref or group.symbol or "group"


def _root(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> None:
    """A fixed root in a group that each rank chooses for itself."""
    if name not in ("dist.broadcast", "dist.reduce", "dist.broadcast_object_list", "dist.gather", "dist.scatter"):
        return
    group = kw.get("group") or (args[2] if name == "dist.broadcast" and len(args) > 2 else None)
    root = kw.get("src") or kw.get("dst") or (args[1] if name == "dist.broadcast" and len(args) > 1 else None)
    if group is None or root is None or group.kind is not TracedKind.GROUP:
        return
    is_own = group.certain and bool(group.origins & {DiffersBy.RANK, DiffersBy.NODE})
    if is_own and root.kind is TracedKind.CONSTANT and isinstance(root.constant, int) and not ex.differs_here():
        ex.mistake(MistakeKind.ROOT_OUTSIDE_GROUP, node)


def _outsiders(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> None:
    """Every rank, under no condition, calls a collective of a group that only some ranks belong to."""
    position = _GROUPS.get(name)
    group = kw.get("group") or (args[position] if position is not None and position < len(args) else None)
    if group is None or group.kind is not TracedKind.GROUP or not group.certain or group.origins or ex.state.conditions:
        return
    ranks = group.fields.get("ranks")
    symbol = ranks.symbol if ranks is not None else None
    is_range = isinstance(symbol, tuple) and symbol[:1] == ("range",) and len(symbol) == 2
    if is_range and ranks is not None and ranks.certain and symbol != ("range", ("world",)) and "world" in repr(symbol):
        ex.mistake(MistakeKind.GROUP_OF_OTHERS, node, group.made)


def _lists(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced], group: object) -> None:
    if name == "dist.gather":
        given = kw.get("gather_list") or (args[1] if len(args) > 1 else None)
        if (
            given is not None
            and given.kind is TracedKind.LIST
            and given.certain
            and not given.origins - {DiffersBy.DATA}
            and not ex.differs_here()
        ):
            ex.mistake(MistakeKind.LIST_ON_EVERY_RANK, node)
    if name in ("dist.all_gather", "dist.all_gather_object") and args and group is None:
        length = ex.now(args[0]).fields.get("length")
        if length is not None and length.has("local world") and ex.knows_rank:
            ex.mistake(MistakeKind.LIST_OF_NODE, node)


def _changed(
    ex: Executor, node: ast.Call, name: str, tensor: Traced, args: list[Traced], kw: dict[str, Traced], group: object
) -> None:
    """all_reduce and broadcast: the tensor becomes the same on all ranks of the group."""
    present = ex.now(tensor)
    if present.kind is TracedKind.PARAMETER and present.of:
        ex.parameters_synchronized(present.of)
        return
    if present.kind is TracedKind.BUFFERS and present.of:
        ex.buffers_synchronized(present.of)
        return
    op = kw.get("op") or (args[1] if name == "dist.all_reduce" and len(args) > 1 else None)
    word = str(op.constant).rpartition(".")[2] if op is not None else "SUM"
    sums = name == "dist.all_reduce" and word == "SUM"
    if present.kind is TracedKind.GRADIENT:
        ex.gradient_reduced(present, node, whole=group is None)
        present = ex.now(tensor)
    if sums and present.has("reduced-and-added") and group is None and "reduced" in present.marks:
        ex.mistake(MistakeKind.TOTAL_REDUCED_AGAIN, node)
    marks = present.marks - {"averaged", "summed", "uneven", "autograd-gradient"} | {"reduced", "agreed"}
    if group is None and name == "dist.all_reduce":
        marks |= {"averaged"} if word == "AVG" else {"summed"} if sums else set()
    if present.trains and "no_grad" not in ex.contexts and name == "dist.all_reduce":
        marks |= {"reduced-loss"}
    if group is None and name == "dist.all_reduce":
        marks = quantities.reduced(ex, present, marks, node, sums=sums)
    power = present.power
    if sums:
        power = Power(power.world + 1, power.local) if power is not None and group is None else None
    certain = present.certain or group is None
    ex.change(
        present,
        origins=frozenset() if group is None else present.origins,
        certain=certain if group is None else False,
        marks=marks,
        power=power,
        made=node if "reduced-loss" in marks else present.made,
    )


def _gathered(ex: Executor, node: ast.Call, parts: Traced, source: Traced, group: object) -> None:
    if source.certain and source.has("ragged-rows") and group is None and not ex.differs_here():
        ex.mistake(MistakeKind.RAGGED_SHAPES, node)
    trained = source.certain and bool(source.trains) and "no_grad" not in ex.contexts
    if trained:
        ex.gathers.append((ex.module, node))
    marks = ex.now(parts).marks | ({"gathered"} if trained else set())
    ex.change(
        parts,
        origins=frozenset(),
        certain=group is None and source.certain,
        marks=marks,
        items=None,
        trains=frozenset(),
        made=node,
    )
    item = Traced(
        TracedKind.TENSOR,
        certain=group is None and source.certain,
        marks=frozenset(("gathered",)) if trained else frozenset(),
    )
    ex.change(parts, fields={**ex.now(parts).fields, "item": item})


def _mesh(ex: Executor, node: ast.Call, kw: dict[str, Traced]) -> Traced:
    names = kw.get("mesh_dim_names")
    words = [str(v.constant) for v in (names.items or ())] if names is not None else []
    if len(words) > 1 and any(w in ("tp", "tensor", "model", "tensor_parallel") for w in words):
        ex.tensor_mesh = node
    ex.communicate("init_device_mesh", node)
    return ex.new(Traced(TracedKind.MESH, certain=True, marks=frozenset(words)), node)


def _from_local(ex: Executor, node: ast.Call, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    placements = kw.get("placements") or (args[2] if len(args) > 2 else None)
    items = placements.items if placements is not None and placements.items is not None else ()
    mesh = args[1] if len(args) > 1 else kw.get("device_mesh", UNKNOWN)
    alone = len(items) == 1 and not len(mesh.marks) > 1
    replicated = bool(items) and all(str(v.symbol).find("Replicate") >= 0 for v in items)
    if args and args[0].is_own and replicated and alone:
        ex.mistake(MistakeKind.REPLICA_DIFFERS, node)
    return ex.new(replace(SAME, kind=TracedKind.TENSOR, certain=False), node)
