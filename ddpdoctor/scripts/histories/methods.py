"""What attributes and methods of values do: the counterpart of `library` for everything after a dot."""

from __future__ import annotations

import ast
from dataclasses import replace

from ddpdoctor.scripts.histories import quantities
from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.file_uses import path_method
from ddpdoctor.scripts.histories.library import environment, flat, pure
from ddpdoctor.scripts.histories.module_uses import (
    backward,
    bypasses_forward,
    call_module,
    forget_all_gradients,
    forget_gradient,
    gradient_of,
    initialized,
    make_object,
    module_method,
    optimizer_method,
    parameter_changed,
    scaler_method,
    set_on_module,
    state_loaded,
    stepped,
)
from ddpdoctor.scripts.histories.process_state import (
    drawn_for_training,
    file_exists,
    opened,
    sampler_method,
    variable_set,
)
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import NOTHING, SAME, UNKNOWN, DiffersBy, Power, Traced, TracedKind, derived

__all__ = ["call_method"]

_LENGTH_KEPT = ("to", "cuda", "cpu", "float", "clone", "contiguous", "detach", "long", "half", "double", "data")
_SAME_VALUE = (
    *_LENGTH_KEPT,
    "item",
    "view",
    "view_as",
    "reshape",
    "flatten",
    "numpy",
    "type",
    "requires_grad_",
    "squeeze",
    "unsqueeze",
    "expand",
    "tolist",
    "sqrt",
    "sum",
    "mean",
)
_TENSORS = (TracedKind.TENSOR, TracedKind.GRADIENT, TracedKind.PARAMETER, TracedKind.BUFFERS)
_LOGGING = ("add_scalar", "add_scalars", "log", "info", "debug", "write", "log_metrics", "log_metric")
_COPIES = ("copy_", "set_", "fill_")
_NOT_CHANGING = ("requires_grad_", "retain_grad_", "share_memory_")


def call_method(
    ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced], kw: dict[str, Traced]
) -> Traced | None:
    """A method call; names with a sign are other uses of a value: `.attribute`, `=attribute`, `[]`, `()`."""
    if name == "(class)":
        return make_object(ex, node, owner, args, kw)
    if name.startswith("!"):
        bypasses_forward(ex, node, owner, name[1:])
        return None
    if name == "=given":
        initialized(ex, owner.of or owner.ref)
        return None
    if name in ("=iterated", "=trained"):
        (opened if name == "=iterated" else drawn_for_training)(ex, args[0].made or node, owner)
        return None
    if name == "=environ":
        variable_set(ex, args[0], args[1], args[2].made or node)
        return None
    if name.startswith("="):
        set_on_module(ex, owner, name[1:], args[0], args[1].made or node)
        return None
    if name == "[item]":
        return _element(ex, owner)
    if name.startswith("."):
        return _attribute(ex, owner, name[1:])
    if name in ("[]", "[:]"):
        return _indexed(ex, owner, name, args)
    if owner.kind in (TracedKind.MODULE, TracedKind.WRAPPER):
        return _of_module(ex, node, owner, name, args, kw)
    if name in ("parse_args", "parse_known_args"):
        options = Traced(TracedKind.OPTIONS, certain=True, symbol=("options",))
        return options if name == "parse_args" else Traced(TracedKind.LIST, certain=True, items=(options, SAME))
    if owner.kind is TracedKind.OPTIMIZER:
        return optimizer_method(ex, node, owner, name)
    if owner.kind is TracedKind.SCALER:
        if name == "step" and args:
            return optimizer_method(ex, node, ex.now(args[0]), "step", by_scaler=True)
        return scaler_method(ex, node, owner, name, args)
    return _of_value(ex, node, owner, name, args, kw)


def _of_module(
    ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced], kw: dict[str, Traced]
) -> Traced | None:
    if name == "()":
        return call_module(ex, node, owner, args, kw)
    known = module_method(ex, node, owner, name, args, kw)
    if known is not None:
        return known
    return None


def _element(ex: Executor, owner: Traced) -> Traced | None:
    if owner.kind in (TracedKind.PARAMETERS, TracedKind.BUFFERS):
        kind = TracedKind.PARAMETER if owner.kind is TracedKind.PARAMETERS else TracedKind.BUFFERS
        one = Traced(kind, certain=True, of=owner.of)
        if any(m.startswith("named") or m == "items" for m in owner.marks):
            side = "name-of-wrapper" if owner.has("of-wrapper") else "name-of-module"
            name = replace(SAME, kind=TracedKind.TEXT, marks=frozenset((side,)))
            return Traced(TracedKind.LIST, certain=True, items=(name, one))
        return one
    if owner.kind is TracedKind.DATASET:
        return Traced(
            TracedKind.TENSOR,
            frozenset((DiffersBy.DATA,)) if owner.has("own-slice") else frozenset(),
            owner.has("own-slice"),
        )
    if owner.kind is TracedKind.SET:
        return Traced(TracedKind.TEXT, certain=True)
    return None


def _attribute(ex: Executor, owner: Traced, name: str) -> Traced | None:
    if owner.kind is TracedKind.OPTIONS:
        if name in ("local_rank", "rank") or "rank" in name.split("_"):
            return UNKNOWN
        return replace(SAME, symbol=("option", name))
    if name == "training" and owner.kind is TracedKind.MODULE:
        return replace(SAME, symbol=("training", owner.ref))
    if owner.kind is TracedKind.WRAPPER and name != "module":
        return None
    if name == "grad" and owner.kind is TracedKind.PARAMETER:
        return gradient_of(ex, owner)
    if owner.kind in _TENSORS and name == "data":
        return owner
    if owner.kind is TracedKind.TENSOR and name in ("device", "dtype", "ndim", "is_cuda", "requires_grad"):
        return SAME
    if owner.kind is TracedKind.TENSOR and name == "shape":
        marks = owner.marks & {"uneven"}
        return Traced(
            TracedKind.LIST,
            frozenset((DiffersBy.DATA,)) if marks else frozenset(),
            owner.certain,
            marks=frozenset(marks),
        )
    if owner.kind is TracedKind.TENSOR and name in ("T", "mT", "real", "values", "indices"):
        return replace(owner, ref=0)
    if owner.kind is TracedKind.LOADER and name in ("dataset", "sampler"):
        value = owner.fields.get(name, UNKNOWN)
        sampler = owner.fields.get("sampler")
        is_split = sampler is not None and sampler.kind is TracedKind.SAMPLER
        is_plain = sampler is None and not owner.has("own-data")
        return value.marked("whole-dataset") if name == "dataset" and (is_split or is_plain) else value
    if owner.kind is TracedKind.DATASET and name == "tensors":
        return Traced(
            TracedKind.LIST,
            certain=True,
            fields={"item": replace(_element(ex, owner) or UNKNOWN, certain=True)},
            marks=owner.marks & {"uneven", "own-slice"},
        )
    return None


def _indexed(ex: Executor, owner: Traced, name: str, args: list[Traced]) -> Traced | None:
    if owner.symbol == ("external", "os.environ") and args and isinstance(args[0].constant, str):
        return environment(args[0].constant)
    if owner.kind in (TracedKind.PARAMETERS, TracedKind.BUFFERS) and name == "[]":
        return replace(_element(ex, replace(owner, marks=frozenset())) or UNKNOWN, certain=True)
    if owner.kind is TracedKind.MESH:
        return (
            replace(owner, ref=0, marks=frozenset((str(args[0].constant),)))
            if args and isinstance(args[0].constant, str)
            else owner
        )
    layer = owner.fields.get(f"[{args[0].constant}]") if owner.kind is TracedKind.MODULE and args else None
    if layer is not None and isinstance(args[0].constant, int):
        return ex.now(layer)
    if owner.kind is TracedKind.MODULE and name == "[]":
        return ex.now(owner.fields["item"]) if "item" in owner.fields else UNKNOWN
    return None


def _of_value(
    ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced], kw: dict[str, Traced]
) -> Traced | None:
    if name == "backward" and owner.kind in (TracedKind.TENSOR, TracedKind.NUMBER, TracedKind.UNKNOWN):
        return backward(ex, node, owner)
    if owner.has("scheduler") and name == "load_state_dict":
        state_loaded(ex, node, owner)
        return UNKNOWN
    if owner.has("scheduler") and name == "step":
        stepped(ex, node, owner, ex.state.heap.get(owner.of))
    if owner.kind is TracedKind.UNKNOWN and name == "zero_grad":
        forget_all_gradients(ex)
    if name in _LOGGING:
        for value in (*args, *kw.values()):
            quantities.shown(ex, value)
    if owner.has("plateau") and name == "step" and args and args[0].is_own and not ex.differs_here():
        ex.mistake(MistakeKind.SCHEDULER_LOCAL, node)
    if owner.has("socket") and name == "getsockname":
        one = Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANDOM,)), True, made=node)
        return Traced(TracedKind.LIST, one.origins, True, fields={"item": one})
    if owner.has("socket"):
        return UNKNOWN
    if owner.kind is TracedKind.HANDLE:
        if name == "wait":
            ex.change(owner, marks=owner.marks - {"unwaited"})
        return UNKNOWN
    if owner.kind is TracedKind.GENERATOR:
        return _of_generator(ex, node, owner, name, args)
    if owner.kind in _TENSORS:
        return _of_tensor(ex, node, owner, name, args, kw)
    if owner.kind in (TracedKind.LIST, TracedKind.SET, TracedKind.DICT):
        return _of_collection(ex, node, owner, name, args)
    if owner.kind is TracedKind.PARAMETERS:
        return replace(owner, marks=owner.marks | {name}) if name in ("items", "values") else UNKNOWN
    if owner.kind is TracedKind.TEXT or (owner.kind is TracedKind.CONSTANT and isinstance(owner.constant, str)):
        if name in ("exists", "is_file", "is_dir", "iterdir", "glob"):
            return file_exists(owner)
        done = path_method(ex, node, owner, name)
        return done if done is not None else derived(TracedKind.TEXT, owner, *flat(ex, args))
    if owner.kind in (TracedKind.SAMPLER, TracedKind.LOADER):
        sampler_method(ex, node, owner, name, args)
        return UNKNOWN
    if owner.kind is TracedKind.MESH:
        if name == "get_group":
            return Traced(
                TracedKind.GROUP,
                frozenset((DiffersBy.RANK,)) if len(owner.marks) == 1 else frozenset(),
                False,
                made=node,
            )
        if name in ("get_local_rank", "get_rank"):
            whole = name == "get_rank"
            return Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), whole, constant="rank" if whole else None)
        return SAME if name == "size" else UNKNOWN
    if owner.kind is TracedKind.OPTIONS or (owner.kind is TracedKind.UNKNOWN and owner.certain):
        return Traced(TracedKind.UNKNOWN, certain=True) if not args else None
    return None


def _of_generator(ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced]) -> Traced:
    if name in ("manual_seed", "seed") and args:
        own = (
            frozenset((DiffersBy.DATA,))
            if args[0].origins & {DiffersBy.RANK, DiffersBy.LOCAL_RANK, DiffersBy.DATA}
            else frozenset[DiffersBy]()
        )
        return ex.change(owner, origins=own, certain=args[0].certain or bool(own))
    kind = TracedKind.NUMBER if name in ("random", "randint", "uniform") else TracedKind.TENSOR
    return Traced(kind, owner.origins, owner.certain)


def _of_tensor(
    ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced], kw: dict[str, Traced]
) -> Traced | None:
    if name == "to_local" and owner.kind is TracedKind.GRADIENT:
        return ex.new(
            Traced(TracedKind.TENSOR, frozenset((DiffersBy.SHARD,)), True, marks=frozenset(("shard",)), of=owner.of),
            node,
        )
    if name.endswith("_") and not name.endswith("__") and name not in _NOT_CHANGING:
        return _in_place(ex, node, owner, name, args)
    if name == "requires_grad_" and owner.kind is TracedKind.PARAMETER:
        set_on_module(
            ex,
            owner,
            "requires_grad",
            args[0] if args else Traced(TracedKind.CONSTANT, certain=True, constant=True),
            node,
        )
        return owner
    if name in ("size", "numel", "dim"):
        own = owner.certain and owner.has("uneven")
        return Traced(
            TracedKind.NUMBER,
            frozenset((DiffersBy.DATA,)) if own else frozenset(),
            True,
            marks=owner.marks & {"uneven"},
        )
    if name in ("register_hook", "retain_grad"):
        return UNKNOWN
    if name in ("new_zeros", "new_empty", "new_ones", "new_full"):
        return ex.new(Traced(TracedKind.TENSOR, certain=True), node)
    if name in ("split", "chunk"):
        part = replace(owner, ref=0, kind=TracedKind.TENSOR)
        return ex.new(
            Traced(
                TracedKind.LIST, owner.origins, owner.certain, fields={"item": part}, marks=owner.marks & {"uneven"}
            ),
            node,
        )
    result = pure(ex, node, TracedKind.TENSOR, [owner, *args, *kw.values()])
    if name in ("detach", "item", "tolist", "numpy", "cpu") or "no_grad" in ex.contexts:
        drop = name != "cpu" or "no_grad" in ex.contexts
        result = ex.change(result, trains=frozenset() if drop else owner.trains)
    if name == "mean" and not owner.has("mask") and not args and not kw:
        result = ex.change(result, marks=result.marks | {"mean"})
    if name in ("sum", "numel"):
        result = ex.change(result, marks=result.marks - {"mean"})
    if name in _SAME_VALUE:
        kept = (
            owner.marks & {"mask", "summed", "averaged", "shard", "ragged-rows"} | ({"mean"} & owner.marks)
            if name in (*_LENGTH_KEPT, "view", "reshape", "flatten", "item")
            else frozenset()
        )
        result = ex.change(result, power=owner.power, marks=result.marks | kept)
    elif name in ("div", "mul", "true_divide") and args:
        op = ast.Mult() if name == "mul" else ast.Div()
        return ex.binary(op, owner, args[0], node)
    else:
        result = ex.change(result, power=Power())
    if name == "to" and result.has("uneven"):
        return result
    return result


def _in_place(ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced]) -> Traced:
    if owner.kind is TracedKind.PARAMETER:
        parameter_changed(ex, owner, node)
        return owner
    if owner.kind is TracedKind.BUFFERS or not owner.ref:
        return owner
    if name == "mul_" and owner.has("shard") and args and args[0].certain and DiffersBy.SHARD in args[0].origins:
        ex.mistake(MistakeKind.SHARD_SCALED, node)
        return owner
    if owner.kind is TracedKind.GRADIENT and name in ("zero_", "fill_"):
        forget_gradient(ex, owner.of)
        return ex.now(owner)
    if name in ("zero_", *_COPIES):
        source = args[0] if args and name != "zero_" else Traced(certain=True)
        kept = owner.marks - {"reduced", "summed", "averaged", "reduced-and-added", "uneven"}
        return ex.change(
            owner,
            origins=source.origins,
            certain=source.certain,
            power=source.power if source.kind is TracedKind.TENSOR else Power(),
            marks=kept,
        )
    operators: dict[str, ast.operator] = {"div_": ast.Div(), "mul_": ast.Mult(), "add_": ast.Add(), "sub_": ast.Sub()}
    op = operators.get(name)
    if op is None or not args:
        merged = derived(owner.kind, owner, *args)
        return ex.change(owner, origins=merged.origins, certain=merged.certain, power=None)
    result = ex.binary(op, owner, args[0], node)
    lost = (owner.marks & quantities.QUANTITIES) - result.marks
    marks = (owner.marks | result.marks) - lost
    return ex.change(owner, origins=result.origins, certain=result.certain, power=result.power, marks=marks)


def _of_collection(ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced]) -> Traced | None:
    if name in ("append", "add", "insert") and args and owner.kind is TracedKind.LIST:
        value = args[-1]
        item = joined_item(ex, owner, value)
        own = any(c.value.is_own for c in ex.state.conditions)
        marks = owner.marks | ({"uneven"} if own else set())
        ex.change(
            owner,
            items=None,
            fields={**owner.fields, "item": item},
            origins=owner.origins | value.origins,
            certain=value.certain and owner.certain,
            trains=owner.trains | value.trains,
            marks=marks,
        )
        return NOTHING
    if name in ("extend",) and args:
        ex.change(owner, items=None, fields={**owner.fields, "item": ex.item_of(args[0])}, certain=args[0].certain)
        return NOTHING
    if owner.kind is TracedKind.DICT:
        item = owner.fields.get("item", UNKNOWN)
        if name == "items":
            return Traced(
                TracedKind.LIST,
                certain=True,
                fields={"item": Traced(TracedKind.LIST, certain=True, items=(SAME, item))},
                marks=owner.marks & {"own-keys"},
            )
        if name in ("keys", "values"):
            return Traced(
                TracedKind.LIST,
                certain=True,
                fields={"item": SAME if name == "keys" else item},
                marks=owner.marks & {"own-keys"},
            )
        if name in ("get", "pop", "setdefault") and args:
            return owner.fields.get(f"[{args[0].constant}]", item)
    return None


def joined_item(ex: Executor, owner: Traced, value: Traced) -> Traced:
    """The element of a list after another one was added."""
    from ddpdoctor.scripts.histories.values import joined

    known = owner.fields.get("item")
    return joined(ex.now(known), ex.now(value), None) if known is not None else value
