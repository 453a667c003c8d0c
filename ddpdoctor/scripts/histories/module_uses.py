"""What happens to modules, optimizers and gradients, in which order: the table of legal orders.

| module | wrapped by DDP | changed, moved, unfrozen, loaded by one rank | trained through DDP |
|---|---|---|---|
| made | wrapped | made | |
| wrapped | wrapped | missing until it is wrapped again: CHANGED_, MOVED_, UNFROZEN_AFTER_WRAP, LOADED_ON_ONE_RANK | wrapped |
| sharded | | | |

| optimizer of | stepped |
|---|---|
| the parameters that are trained | updated |
| the parameters before fully_shard | missing: OLD_PARAMETERS |

| gradients | reduced by hand | unscaled | clipped | stepped |
|---|---|---|---|---|
| local, scaled | reduced, scaled | unscaled | | |
| unscaled | missing: UNSCALED_TOO_EARLY | | clipped | |
| local under no_sync | reduced | | | missing: TAIL_NOT_SYNCHRONIZED |
| of FSDP 1 | | | missing: CLIPPED_SHARD | |
"""

from __future__ import annotations

import ast
from dataclasses import replace

from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import NOTHING, UNKNOWN, DiffersBy, Power, Traced, TracedKind, derived

__all__ = [
    "backward",
    "call_module",
    "gradient_of",
    "make_object",
    "module_method",
    "optimizer_method",
    "parameters_of",
    "scaler_method",
    "set_on_module",
    "wrapped",
]

_KEEP = ("train", "eval", "float", "half", "double", "bfloat16", "cuda", "cpu", "to", "requires_grad_", "apply")
_PARAMETERS = ("parameters", "named_parameters", "state_dict", "values", "items")


def wrapped(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    """Constructors of modules and wrappers, and FSDP 2; None for anything else."""
    if name in ("DDP", "FSDP") and args:
        return _wrap(ex, node, name, args[0], kw)
    if name == "fully_shard" and args:
        for ref in {ex.root(args[0].ref), args[0].ref}:
            value = ex.state.heap.get(ref)
            if value is not None and value.kind is TracedKind.MODULE:
                marks = {"sharded"} | ({"sharded-root"} if ref == args[0].ref else set())
                ex.change(value, marks=value.marks | marks)
        return args[0]
    if name.endswith("register_fsdp_forward_method") and len(args) == 2:
        value = ex.now(args[0])
        ex.change(value, marks=value.marks | {f"forward {args[1].constant}"})
        return NOTHING
    if name.endswith("convert_sync_batchnorm") and args:
        value = ex.now(args[0])
        if value.has("DDP"):
            ex.mistake(MistakeKind.SYNCBN_AFTER_WRAP, node)
        return ex.change(value, marks=value.marks - {"batchnorm"})
    if (
        name in ("nn.Module", "nn.functional")
        or not name.startswith("nn.")
        or name.startswith(("nn.functional.", "nn.init.", "nn.utils.", "nn.attention."))
    ):
        return None
    if name == "nn.Parameter":
        return Traced(TracedKind.PARAMETER, certain=True)
    marks = {"batchnorm"} if "BatchNorm" in name and "Sync" not in name else set()
    for value in args:
        present = ex.now(value)
        marks |= present.marks & {"batchnorm"}
        if "item" in present.fields:
            marks |= ex.now(present.fields["item"]).marks & {"batchnorm"}
    fields = {"item": ex.item_of(args[0])} if name.endswith(("ModuleList", "Sequential")) and args else {}
    loss = {"loss"} if name.endswith("Loss") else set()
    return ex.new(
        _started(ex, Traced(TracedKind.MODULE, certain=True, fields=fields, marks=frozenset(marks | loss))), node
    )


def _started(ex: Executor, value: Traced) -> Traced:
    own = ex.state.generators.get("torch", frozenset())
    return value.marked("own-start") if own else value


def make_object(ex: Executor, node: ast.Call, cls: Traced, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    """An object of a class of the project: its __init__ is executed."""
    module, definition, _ = cls.constant
    kind = TracedKind.OBJECT
    if module.is_a(definition, "nn.Module"):
        kind = TracedKind.MODULE
    elif module.is_a(definition, "Dataset", "IterableDataset"):
        kind = TracedKind.DATASET
    made = Traced(kind, certain=True, constant=cls.constant)
    made = ex.new(_started(ex, made) if kind is TracedKind.MODULE else made, node)
    init = ex.method_of(made, "__init__")
    if init is not None:
        ex.call_function(init, args, kw, made)
    elif any("dataclass" in ast.unparse(d) for d in definition.decorator_list):
        names = [
            s.target.id for s in definition.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        ex.change(made, fields={**ex.now(made).fields, **dict(zip(names, args, strict=False)), **kw})
    if kind is TracedKind.MODULE:
        ex.change(made, marks=ex.now(made).marks | _inherited(ex, made))
    if kind is TracedKind.DATASET:
        _dataset(ex, made)
    return ex.now(made)


def _inherited(ex: Executor, made: Traced) -> frozenset[str]:
    parts = [ex.now(v) for v in ex.now(made).fields.values()]
    return frozenset(
        m for p in parts for m in p.marks if p.kind is TracedKind.MODULE and m in ("batchnorm", "own-start")
    )


def _dataset(ex: Executor, made: Traced) -> None:
    length = ex.method_of(made, "__len__")
    value = ex.call_function(length, [], {}, made) if length is not None else UNKNOWN
    marks = value.marks & {"uneven"}
    fields = [ex.now(v) for v in ex.now(made).fields.values()]
    if any(v.has("own-slice") or v.origins & {DiffersBy.RANK} for v in fields):
        marks |= {"own-slice"}
    ex.change(made, marks=ex.now(made).marks | marks)


def _wrap(ex: Executor, node: ast.Call, name: str, module: Traced, kw: dict[str, Traced]) -> Traced:
    present = ex.now(module)
    marks = {name}
    find = kw.get("find_unused_parameters")
    if (
        (find is not None and find.constant is not False)
        or "static_graph" in kw
        or any(k.arg is None for k in node.keywords)
    ):
        marks.add("finds-unused")
    if present.kind is TracedKind.MODULE and present.ref:
        strategy = kw.get("sharding_strategy")
        own = (
            {"wrapped", name}
            if name == "DDP" or strategy is None or "NO_SHARD" not in str(strategy.symbol)
            else {"wrapped"}
        )
        own |= {"sharded"} if name == "FSDP" else set()
        buffers = kw.get("broadcast_buffers")
        if buffers is not None and buffers.constant is False and present.has("batchnorm"):
            own.add("buffers-apart")
        ex.change(
            present,
            marks=present.marks - {"own-start", "wrapped-frozen"} | own,
            fields={**present.fields, "(wrapper)": Traced(made=node)},
        )
        ex.state.obligations.pop(present.ref, None)
    return ex.new(
        Traced(
            TracedKind.WRAPPER,
            certain=present.certain,
            fields={"module": module},
            marks=frozenset(marks),
            of=present.ref,
        ),
        node,
    )


def parameters_of(ex: Executor, value: Traced) -> Traced | None:
    """The outermost module whose parameters these are."""
    present = ex.now(value)
    of = present.of or (ex.item_of(present).of if present.kind is TracedKind.LIST else 0)
    return ex.state.heap.get(ex.root(of)) if of else None


def gradient_of(ex: Executor, parameter: Traced) -> Traced:
    """The gradients of a module: one value for all of its parameters."""
    root = ex.state.heap.get(ex.root(parameter.of))
    if root is None or not parameter.of:
        return UNKNOWN
    known = root.fields.get("(gradient)")
    if known is None:
        known = ex.new(Traced(TracedKind.GRADIENT, certain=True, of=root.ref))
        ex.change(root, fields={**root.fields, "(gradient)": known})
    return ex.now(known)


def call_module(ex: Executor, node: ast.Call, owner: Traced, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    """A forward pass."""
    root = ex.root(owner.of if owner.kind is TracedKind.WRAPPER else owner.ref)
    module = ex.state.heap.get(root)
    here = ex.differs_here()
    if module is not None:
        _forward_events(ex, node, owner, module, here)
    is_root = owner.kind is TracedKind.WRAPPER or (module is not None and owner.ref == root)
    if is_root and module is not None and isinstance(module.constant, tuple):
        _run_forward(ex, node, owner, module, args, kw)
    elif owner.kind is TracedKind.MODULE:
        ex.communicate("submodule", node, "forward")
    values = [v for v in (*args, *kw.values()) if v.kind not in (TracedKind.MODULE, TracedKind.WRAPPER)]
    result = derived(
        TracedKind.TENSOR,
        *(ex.item_of(v) if v.kind in (TracedKind.LIST, TracedKind.DICT) else ex.now(v) for v in values),
    )
    trains = (
        result.trains | ({owner.ref} if is_root else {root})
        if "no_grad" not in ex.contexts and owner.certain and not owner.has("loss")
        else frozenset[int]()
    )
    trains = result.trains if owner.has("loss") else trains
    sure = result.certain and owner.certain
    rows = {m for v in values[:1] for m in ex.now(v).marks & {"ragged-rows"}}
    marks = result.marks - {"uneven"} | (rows if not owner.has("loss") else set())
    return ex.new(replace(result, certain=sure, trains=trains, marks=marks, power=Power()), node)


def _forward_events(ex: Executor, node: ast.Call, owner: Traced, module: Traced, here: bool) -> None:
    if not here:
        ex.use_module(module.ref, "forward")
    is_top = owner.kind is TracedKind.WRAPPER or owner.ref == module.ref
    if module.has("sharded") and is_top:
        ex.communicate("forward of a sharded module", node)
    if (
        module.has("buffers-apart")
        and module.has("eval")
        and module.has("trained")
        and not module.has("buffers-equal")
        and is_top
        and not here
    ):
        made = module.fields.get("(eval)")
        ex.mistake(MistakeKind.BUFFERS_APART, made.made if made is not None and made.made is not None else node)
    if (
        owner.kind is TracedKind.MODULE
        and owner.ref == module.ref
        and module.has("DDP")
        and "no_grad" not in ex.contexts
    ):
        ex.change(module, fields={**module.fields, "(bypass)": Traced(made=node)})


def _run_forward(
    ex: Executor, node: ast.Call, owner: Traced, module: Traced, args: list[Traced], kw: dict[str, Traced]
) -> None:
    """Execute the project's forward(), for what it communicates and decides."""
    forward = ex.method_of(module, "forward")
    if forward is None:
        return
    judged = owner.has("DDP") and not owner.has("finds-unused") and "no_grad" not in ex.contexts
    ex.contexts += ["forward"] if judged else []
    ex.call_function(forward, args, kw, module)
    if judged:
        ex.contexts.remove("forward")


def module_method(
    ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced], kw: dict[str, Traced]
) -> Traced | None:
    """A method of a module or a wrapper."""
    root = ex.root(owner.of if owner.kind is TracedKind.WRAPPER else owner.ref)
    module = ex.state.heap.get(root)
    if name in ("parameters", "named_parameters", "state_dict"):
        holder = ex.root(owner.of) if owner.kind is TracedKind.WRAPPER else owner.ref
        return Traced(TracedKind.PARAMETERS, certain=owner.certain, marks=frozenset((name,)), of=holder)
    if name in ("buffers", "named_buffers"):
        return Traced(TracedKind.BUFFERS, certain=owner.certain, marks=frozenset((name,)), of=root)
    if name in ("modules", "children", "named_modules", "named_children"):
        return Traced(TracedKind.LIST, certain=False, fields={"item": replace(owner, certain=False)})
    if name == "no_sync":
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("no_sync",)))
    if name == "join":
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("join",)))
    if module is None:
        return None
    if name in ("train", "eval"):
        flag = name == "eval" or (bool(args) and args[0].constant is False)
        marks = module.marks | {"eval"} if flag else module.marks - {"eval"}
        ex.change(module, marks=marks, fields={**module.fields, "(eval)": Traced(made=node)} if flag else module.fields)
    if name in ("to", "cuda", "cpu"):
        _moved(ex, node, module, name, args)
    if name == "requires_grad_":
        _trainable(ex, node, root, args[0] if args else Traced(TracedKind.CONSTANT, certain=True, constant=True))
    if name == "load_state_dict":
        _loaded(ex, node, module)
        return UNKNOWN
    if name == "register_comm_hook":
        ex.change(module, marks=module.marks | {"hooked"})
    return ex.now(owner) if name in _KEEP else None


def _moved(ex: Executor, node: ast.Call, module: Traced, name: str, args: list[Traced]) -> None:
    target = args[0] if args else UNKNOWN
    text = str(target.constant)
    to_cpu = name == "cpu" or target.has("cpu") or text == "cpu"
    to_cuda = name == "cuda" or target.has("cuda") or text.startswith("cuda")
    if to_cpu and module.has("cuda") and module.has("DDP") and not ex.differs_here():
        ex.owe(module.ref, MistakeKind.MOVED_AFTER_WRAP, node)
    if to_cuda or to_cpu:
        marks = module.marks - {"cuda"} | ({"cuda"} if to_cuda else set())
        ex.change(module, marks=marks)


def _trainable(ex: Executor, node: ast.AST, ref: int, flag: Traced) -> None:
    """requires_grad is set on parameters of a module."""
    module = ex.state.heap.get(ex.root(ref))
    if module is None or flag.kind is not TracedKind.CONSTANT or not flag.certain:
        return
    if flag.constant is False:
        ex.change(module, marks=module.marks | {"frozen"})
    elif flag.constant is True and module.has("frozen") and module.has("DDP"):
        ex.owe(module.ref, MistakeKind.UNFROZEN_AFTER_WRAP, node)


def _loaded(ex: Executor, node: ast.AST, module: Traced) -> None:
    rank = ex.only_rank()
    if rank is not None and rank[0] is DiffersBy.RANK and module.has("DDP"):
        ex.owe_where_decided(module.ref, MistakeKind.LOADED_ON_ONE_RANK, node)
    elif not ex.differs_here():
        owed = ex.state.obligations.get(module.ref, ())
        gone = (MistakeKind.LOADED_ON_ONE_RANK, MistakeKind.UPDATED_ON_ONE_RANK)
        ex.state.obligations[module.ref] = tuple(o for o in owed if o.kind not in gone)


def set_on_module(ex: Executor, owner: Traced, name: str, value: Traced, node: ast.AST) -> None:
    """An attribute of a module or parameter is assigned."""
    if owner.kind is TracedKind.PARAMETER and name == "requires_grad":
        _trainable(ex, node, owner.of, value)
    if owner.kind is TracedKind.PARAMETER and name == "data":
        parameter_changed(ex, owner, node)
    if owner.kind is not TracedKind.MODULE or value.kind is not TracedKind.MODULE:
        return
    root = ex.state.heap.get(ex.root(owner.ref))
    if value.ref and value.ref != owner.ref and root is not None and value.ref != root.ref:
        ex.change(value, of=owner.ref)
    if root is not None and root.has("DDP"):
        ex.owe(root.ref, MistakeKind.CHANGED_AFTER_WRAP, node)


def parameter_changed(ex: Executor, parameter: Traced, node: ast.AST) -> None:
    """Parameters are changed in place: by one rank only, the modules no longer agree."""
    rank = ex.only_rank()
    root = ex.state.heap.get(ex.root(parameter.of)) if parameter.of else None
    if root is None or rank is None or rank[0] is not DiffersBy.RANK or root.has("wrapped"):
        return
    ex.owe_where_decided(root.ref, MistakeKind.UPDATED_ON_ONE_RANK, node, on="forward")


def backward(ex: Executor, node: ast.Call, loss: Traced) -> Traced:
    """A backward pass."""
    for ref in loss.trains:
        value = ex.state.heap.get(ref)
        if value is None:
            continue
        module = ex.state.heap.get(ex.root(value.of)) if value.kind is TracedKind.WRAPPER else value
        if module is None or module.kind is not TracedKind.MODULE:
            continue
        through = value.kind is TracedKind.WRAPPER and value.has("DDP")
        if through:
            _backward_of_ddp(ex, node, loss, module)
        elif module.has("sharded"):
            ex.communicate("backward of a sharded module", node)
        elif module.has("DDP") and "(bypass)" in module.fields:
            made = module.fields["(bypass)"].made
            ex.bypassed.append((module.ref, ex.module, made if made is not None else node, value.kind))
        gradient = gradient_of(ex, Traced(TracedKind.PARAMETER, of=module.ref))
        marks = {"scaled"} if loss.has("scaled") else set()
        for word in ("no_sync", "maybe_no_sync"):
            marks |= {"unsynchronized"} if word in ex.contexts and through and ex.in_loader_loop() else set()
        ex.change(
            gradient,
            origins=frozenset((DiffersBy.DATA,)),
            certain=loss.certain,
            power=loss.power,
            marks=frozenset(marks),
            fields={"(depth)": Traced(constant=ex.depth)},
        )
        present = ex.state.heap[module.ref]
        ex.change(present, marks=present.marks - {"buffers-equal"} | {"trained"})
    if loss.has("gathered") and loss.trains and loss.certain:
        for where, gather in ex.gathers[-1:]:
            ex.mistake_in(MistakeKind.GATHERED_WITHOUT_GRADIENT, where, gather, node)
    return NOTHING


def _backward_of_ddp(ex: Executor, node: ast.Call, loss: Traced, module: Traced) -> None:
    if "no_sync" not in ex.contexts and "maybe_no_sync" not in ex.contexts:
        ex.communicate("backward of DDP", node)
        ex.use_module(module.ref, "backward")
    if module.has("hooked"):
        return
    if loss.has("reduced-loss"):
        ex.mistake(MistakeKind.LOSS_REDUCED, node)
    elif loss.power == Power(-1, 0) and loss.certain:
        by_sum = loss.has("agreed")
        ex.mistake(MistakeKind.LOSS_DIVIDED_BY_SUM if by_sum else MistakeKind.LOSS_DIVIDED, node)


def optimizer_method(ex: Executor, node: ast.Call, owner: Traced, name: str) -> Traced | None:
    """A method of an optimizer."""
    root = ex.state.heap.get(ex.root(owner.of)) if owner.of else None
    if name not in ("step", "zero_grad") or root is None:
        return UNKNOWN
    gradient = root.fields.get("(gradient)")
    if name == "zero_grad":
        if gradient is not None:
            ex.change(ex.now(gradient), marks=frozenset(), power=Power())
        return UNKNOWN
    if root.has("sharded") and not owner.has("sharded") and owner.certain and owner.made is not None:
        ex.mistake(MistakeKind.OLD_PARAMETERS, owner.made)
    if gradient is not None and ex.now(gradient).has("unsynchronized"):
        depth = ex.now(gradient).fields.get("(depth)", UNKNOWN).constant
        if isinstance(depth, int) and ex.depth < depth:
            ex.mistake(MistakeKind.TAIL_NOT_SYNCHRONIZED, node)
    return UNKNOWN


def scaler_method(ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced]) -> Traced | None:
    """A method of a GradScaler."""
    if name == "scale" and args:
        return ex.new(replace(args[0], ref=0, marks=args[0].marks | {"scaled"}), node)
    if name == "unscale_" and args and args[0].of:
        root = ex.state.heap.get(ex.root(args[0].of))
        gradient = root.fields.get("(gradient)") if root is not None else None
        if gradient is not None and owner.certain and ex.now(gradient).has("scaled"):
            ex.change(ex.now(gradient), marks=ex.now(gradient).marks - {"scaled"} | {"unscaled"}, made=node)
    return UNKNOWN


def bypasses_forward(ex: Executor, node: ast.Call, owner: Traced, name: str) -> None:
    """A method of a sharded module that uses its layers without forward()."""
    if (
        owner.kind is not TracedKind.MODULE
        or not owner.has("sharded-root")
        or name in ("", "forward", "__call__", "__init__")
    ):
        return
    if owner.has(f"forward {name}"):
        return
    method = ex.method_of(owner, name)
    function = method.constant[1] if method is not None else None
    if function is None:
        return
    own = function.args.args[0].arg if function.args.args else "self"
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    whole = any(isinstance(c.func, ast.Name) and c.func.id == own for c in calls)
    used = [
        c.func.attr
        for c in calls
        if isinstance(c.func, ast.Attribute) and isinstance(c.func.value, ast.Name) and c.func.value.id == own
    ]
    layers = [u for u in used if u in owner.fields and ex.now(owner.fields[u]).kind is TracedKind.MODULE]
    if layers and not whole and any(not ex.now(owner.fields[u]).has("sharded-root") for u in layers):
        ex.mistake(MistakeKind.FORWARD_BYPASSED, node, None, name)
