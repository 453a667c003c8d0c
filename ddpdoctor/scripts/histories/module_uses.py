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

from ddpdoctor.scripts.histories import quantities
from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import NOTHING, UNKNOWN, DiffersBy, Power, Traced, TracedKind, derived

__all__ = [
    "autograd_gradient",
    "backward",
    "call_module",
    "forget_gradient",
    "gradient_of",
    "initialized",
    "make_object",
    "module_method",
    "optimizer_method",
    "parameters_of",
    "scaler_method",
    "set_on_module",
    "state_loaded",
    "stepped",
    "wrapped",
]

_KEEP = ("train", "eval", "float", "half", "double", "bfloat16", "cuda", "cpu", "to", "requires_grad_", "apply")
_KEEPS_VALUES = ("train", "eval", "float", "half", "double", "bfloat16", "cuda", "cpu", "to", "requires_grad_", "()")


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
    device = kw.get("device")
    if device is not None and device.constant == "meta":
        return ex.new(Traced(TracedKind.MODULE, certain=True, marks=frozenset(("meta",))), node)
    marks = {"batchnorm"} if "BatchNorm" in name and "Sync" not in name else set()
    for value in args:
        present = ex.now(value)
        marks |= present.marks & {"batchnorm"}
        if "item" in present.fields:
            marks |= ex.now(present.fields["item"]).marks & {"batchnorm"}
    fields = _layers(ex, args) if name.endswith(("ModuleList", "Sequential")) and args else {}
    loss = {"loss"} if name.endswith("Loss") else set()
    loss |= {"mean"} if quantities.is_mean_loss(name, kw) else set()
    made = ex.new(
        _started(ex, Traced(TracedKind.MODULE, certain=True, fields=fields, marks=frozenset(marks | loss))), node
    )
    for layer in fields.values():
        if layer.kind is TracedKind.MODULE and layer.ref and not ex.now(layer).of:
            ex.change(layer, of=made.ref)
    return made


def _layers(ex: Executor, args: list[Traced]) -> dict[str, Traced]:
    """The layers of a Sequential or ModuleList, by index."""
    listed = ex.now(args[0])
    given = list(listed.items) if listed.kind is TracedKind.LIST and listed.items is not None else args
    if listed.kind is TracedKind.LIST and listed.items is None:
        return {"item": ex.item_of(listed)}
    return {"item": ex.now(given[0]), **{f"[{i}]": v for i, v in enumerate(given)}} if given else {}


def _started(ex: Executor, value: Traced) -> Traced:
    own = ex.state.generators.get("torch", frozenset())
    value = value.marked("meta") if "meta" in ex.contexts else value
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
        m for p in parts for m in p.marks if p.kind is TracedKind.MODULE and m in ("batchnorm", "own-start", "meta")
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
    _frozen(ex, node, name, present, kw)
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
        if name == "DDP" and buffers is None and not any(k.arg is None for k in node.keywords):
            own.add("broadcasts")
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


def _frozen(ex: Executor, node: ast.Call, name: str, module: Traced, kw: dict[str, Traced]) -> None:
    """A wrapper gets parameters that do not require gradients: DDP needs one that does, FSDP 1 all or none per unit."""
    if module.kind is not TracedKind.MODULE or not module.certain or ex.differs_here():
        return
    if name == "DDP" and module.has("all-frozen"):
        ex.mistake(MistakeKind.FROZEN_WRAPPED, node)
    original = kw.get("use_orig_params")
    policy = kw.get("auto_wrap_policy")
    text = ex.module.text
    is_common = "transformer_auto_wrap_policy" in text or "size_based_auto_wrap_policy" in text
    is_known = policy is None or (
        is_common and not any(w in text for w in ("lambda_auto", "_or_policy", "CustomPolicy"))
    )
    is_flat = name == "FSDP" and original is None and is_known and not {"ignored_modules", "ignored_states"} & set(kw)
    if is_flat and not module.has("all-frozen") and _part_is_frozen(ex, module, 6):
        ex.mistake(MistakeKind.FROZEN_IN_FLAT_PARAMETER, node)


def _part_is_frozen(ex: Executor, module: Traced, depth: int) -> bool:
    parts = [ex.now(v) for k, v in ex.now(module).fields.items() if not k.startswith("(")]
    modules = [p for p in parts if p.kind is TracedKind.MODULE and p.ref != module.ref]
    modules += [ex.item_of(p) for p in parts if p.kind is TracedKind.LIST and "item" in p.fields]
    return any(
        m.kind is TracedKind.MODULE and (m.has("all-frozen") or (depth > 0 and _part_is_frozen(ex, m, depth - 1)))
        for m in modules
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
    if module is not None and module.has("empty") and not here and "(empty)" in module.fields:
        empty = module.fields["(empty)"].made
        ex.mistake_in(MistakeKind.NEVER_INITIALIZED, ex.module_of(module), empty if empty is not None else node)
    if module is not None and owner.kind is TracedKind.WRAPPER and owner.has("DDP") and "no_grad" not in ex.contexts:
        is_quiet = bool({"no_sync", "maybe_no_sync", "no_sync_but_last"} & set(ex.contexts))
        module = ex.change(module, fields={**module.fields, "(forward)": Traced(constant=is_quiet, made=node)})
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
    marks = result.marks - {"uneven"} | (rows if not owner.has("loss") else set()) | (owner.marks & {"mean"})
    return ex.new(replace(result, certain=sure, trains=trains, marks=marks, power=Power()), node)


def _forward_events(ex: Executor, node: ast.Call, owner: Traced, module: Traced, here: bool) -> None:
    if not here:
        ex.use_module(module.ref, "forward")
    is_top = owner.kind is TracedKind.WRAPPER or owner.ref == module.ref
    if module.has("sharded") and is_top:
        ex.communicate("forward of a sharded module", node)
    elif module.has("batchnorm") and module.has("broadcasts") and owner.kind is TracedKind.WRAPPER and owner.has("DDP"):
        ex.communicate("forward of DDP", node)
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
        names = {name} | ({"of-wrapper"} if owner.kind is TracedKind.WRAPPER and owner.has("DDP") else set())
        return Traced(TracedKind.PARAMETERS, certain=owner.certain, marks=frozenset(names), of=holder)
    if name in ("buffers", "named_buffers"):
        return Traced(TracedKind.BUFFERS, certain=owner.certain, marks=frozenset((name,)), of=root)
    if name in ("modules", "children", "named_modules", "named_children"):
        return Traced(TracedKind.LIST, certain=False, fields={"item": replace(owner, certain=False)})
    if name == "no_sync":
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("no_sync",)))
    if name == "join":
        throws = kw.get("throw_on_early_termination")
        words = {"join"} | ({"throws"} if throws is not None and throws.constant is not False else set())
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(words))
    if module is None:
        return None
    if name == "zero_grad":
        forget_gradient(ex, root)
        return NOTHING
    if name == "to_empty":
        if module.has("meta"):
            marks = module.marks - {"meta"} | {"empty"}
            ex.change(module, marks=marks, fields={**module.fields, "(empty)": Traced(made=node)})
        return ex.now(owner)
    if name not in _KEEPS_VALUES:
        initialized(ex, root)
    if name in ("train", "eval"):
        flag = name == "eval" or (bool(args) and args[0].constant is False)
        marks = module.marks | {"eval"} if flag else module.marks - {"eval"}
        ex.change(module, marks=marks, fields={**module.fields, "(eval)": Traced(made=node)} if flag else module.fields)
    if name in ("to", "cuda", "cpu"):
        _moved(ex, node, module, name, args)
    if name == "requires_grad_":
        _trainable(ex, node, root, args[0] if args else Traced(TracedKind.CONSTANT, certain=True, constant=True))
    if name == "load_state_dict":
        strict = kw.get("strict") or (args[1] if len(args) > 1 else None)
        unlike = args and args[0].has("file-of-wrapper") and owner.kind is TracedKind.MODULE
        reverse = args and args[0].has("file-of-module") and owner.kind is TracedKind.WRAPPER and owner.has("DDP")
        if (unlike or reverse) and strict is None:
            ex.mistake(MistakeKind.NAMES_OF_WRAPPER, node)
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
        if not module.has("DDP"):  # what is frozen later was known to DDP
            ex.change(module, marks=module.marks | {"frozen"})
        holder = ex.state.heap.get(ref)
        if holder is not None and not ex.state.conditions:
            ex.change(holder, marks=holder.marks | {"all-frozen"})
        return
    _thawed(ex, ref)
    if module.has("frozen") and module.has("DDP"):
        ex.owe(module.ref, MistakeKind.UNFROZEN_AFTER_WRAP, node)


def _thawed(ex: Executor, ref: int) -> None:
    """A module gets a parameter that requires a gradient, and so do those that contain it."""
    for _ in range(8):
        value = ex.state.heap.get(ref)
        if value is None:
            return
        ex.change(value, marks=value.marks - {"all-frozen"})
        if not value.of or value.of == ref:
            return
        ref = value.of


def initialized(ex: Executor, ref: int) -> None:
    """Something may have written the parameters of a module."""
    for each in {ref, ex.root(ref)}:
        value = ex.state.heap.get(each)
        if value is not None and value.has("empty"):
            ex.change(value, marks=value.marks - {"empty"})


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
    if owner.kind is TracedKind.PARAMETER and name == "grad" and owner.of:
        _gradient_assigned(ex, owner, value)
    if owner.kind is not TracedKind.MODULE or value.kind is not TracedKind.MODULE:
        return
    if not value.has("all-frozen"):
        _thawed(ex, owner.ref)
    root = ex.state.heap.get(ex.root(owner.ref))
    if value.ref and value.ref != owner.ref and root is not None and value.ref != root.ref:
        ex.change(value, of=owner.ref)
    if root is not None and root.has("DDP"):
        ex.owe(root.ref, MistakeKind.CHANGED_AFTER_WRAP, node)


def _gradient_assigned(ex: Executor, parameter: Traced, value: Traced) -> None:
    """The gradient of a parameter is replaced: by one that DDP has not averaged, or by a new one."""
    root = ex.state.heap.get(ex.root(parameter.of))
    if value.has("autograd-gradient") and root is not None and root.has("DDP") and "autograd-gradient" in ex.noted:
        module, node = ex.noted["autograd-gradient"]
        ex.mistake_in(MistakeKind.GRADIENT_BYPASSES_DDP, module, node)
    forget_gradient(ex, parameter.of)


def forget_gradient(ex: Executor, ref: int) -> None:
    """The gradients of a module are gone."""
    root = ex.state.heap.get(ex.root(ref))
    gradient = root.fields.get("(gradient)") if root is not None else None
    if gradient is not None:
        ex.change(ex.now(gradient), marks=frozenset(), power=Power())


def forget_all_gradients(ex: Executor) -> None:
    """The gradients of an unknown module are gone: of any."""
    for value in list(ex.state.heap.values()):
        if value.kind is TracedKind.GRADIENT:
            ex.change(value, marks=frozenset(), power=Power())


def autograd_gradient(ex: Executor, node: ast.Call, args: list[Traced]) -> Traced:
    """torch.autograd.grad: gradients of parameters that no hook of DDP has seen."""
    whole = ex.now(args[1]) if len(args) > 1 else UNKNOWN
    of = whole.of or (ex.item_of(whole).of if whole.kind is TracedKind.LIST else 0)
    root = ex.state.heap.get(ex.root(of)) if of else None
    if root is None or not root.has("DDP"):
        return UNKNOWN
    ex.noted["autograd-gradient"] = (ex.module, node)
    marks = frozenset(("autograd-gradient",))
    one = ex.new(Traced(TracedKind.TENSOR, frozenset((DiffersBy.DATA,)), True, marks=marks), node)
    return ex.new(Traced(TracedKind.LIST, frozenset((DiffersBy.DATA,)), True, fields={"item": one}, marks=marks), node)


def parameter_changed(ex: Executor, parameter: Traced, node: ast.AST) -> None:
    """Parameters are changed in place: by one rank only, the modules no longer agree."""
    rank = ex.only_rank()
    root = ex.state.heap.get(ex.root(parameter.of)) if parameter.of else None
    if root is not None:
        initialized(ex, parameter.of)
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
        bypasses = False
        if through:
            _backward_of_ddp(ex, node, loss, module)
        elif module.has("sharded"):
            ex.communicate("backward of a sharded module", node)
        elif module.has("DDP") and "(bypass)" in module.fields:
            made = module.fields["(bypass)"].made
            bypasses = True
            ex.bypassed.append((module.ref, ex.module, made if made is not None else node, value.kind))
        gradient = gradient_of(ex, Traced(TracedKind.PARAMETER, of=module.ref))
        marks = {"scaled"} if loss.has("scaled") else set()
        if gradient.has("hand-reduced") or gradient.has("reduced-and-accumulated"):
            marks |= {"reduced-and-accumulated"}
        marks |= {"bypassed"} if bypasses else set()
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
    forward = module.fields.get("(forward)")
    is_quiet = "no_sync" in ex.contexts or "maybe_no_sync" in ex.contexts
    if is_quiet and forward is not None and forward.constant is False:
        ex.mistake(MistakeKind.FORWARD_OUTSIDE_NO_SYNC, node)
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


def optimizer_method(
    ex: Executor, node: ast.Call, owner: Traced, name: str, *, by_scaler: bool = False
) -> Traced | None:
    """A method of an optimizer."""
    root = ex.state.heap.get(ex.root(owner.of)) if owner.of else None
    if name == "zero_grad" and root is None:
        forget_all_gradients(ex)
    if name == "load_state_dict":
        state_loaded(ex, node, owner)
    if name == "step":
        stepped(ex, node, owner, root)
    if name not in ("step", "zero_grad") or root is None:
        return UNKNOWN
    if name == "step":
        last = root.fields.get("(gradient)")
        ex.updates[root.ref] = ex.updates.get(root.ref, False) or (last is not None and ex.now(last).has("bypassed"))
    if name == "step" and not by_scaler and owner.certain:
        known = root.fields.get("(gradient)")
        if known is not None and ex.now(known).has("scaled"):
            ex.mistake(MistakeKind.STEPPED_SCALED, node)
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


def state_loaded(ex: Executor, node: ast.AST, owner: Traced) -> None:
    """The state of an optimizer, scheduler or scaler is loaded: by all ranks, or by one, and DDP broadcasts none of it."""
    rank = ex.only_rank()
    if rank is not None and rank[0] is DiffersBy.RANK and owner.ref:
        ex.owe(owner.ref, MistakeKind.STATE_LOADED_ON_ONE_RANK, node, on="step")
    elif not ex.differs_here():
        ex.state.obligations.pop(owner.ref, None)


def stepped(ex: Executor, node: ast.AST, owner: Traced, root: Traced | None) -> None:
    """An optimizer or scheduler is stepped: by all ranks, or by one although all train one model."""
    rank = ex.only_rank()
    if rank is not None and rank[0] is DiffersBy.RANK:
        if root is not None and root.has("DDP") and "backward of DDP" in {c.operation for c in ex.log}:
            ex.mistake(MistakeKind.STEPPED_ON_ONE_RANK, node)
    elif owner.ref and not ex.differs_here():
        ex.use_module(owner.ref, "step")


def scaler_method(ex: Executor, node: ast.Call, owner: Traced, name: str, args: list[Traced]) -> Traced | None:
    """A method of a GradScaler."""
    if name == "load_state_dict":
        state_loaded(ex, node, owner)
    if name == "update":
        stepped(ex, node, owner, None)
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
