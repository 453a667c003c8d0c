"""SCRIPT051, SCRIPT058 and SCRIPT062: the model and its wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace, without_argument
from ddpdoctor.rules.script.script_questions import (
    LOCAL_RANKS,
    argument,
    each_rank,
    has_more,
    is_test,
    last_value,
    start_of,
    value,
)
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice
from ddpdoctor.scripts.interpreter.assumptions import RANK_NAMES
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules


@cause(
    "SCRIPT051",
    "ddp-device-ids-wrong",
    Severity.ERROR,
    signatures=(
        r"device_ids can only be None or contain a single element",
        r"DistributedDataParallel is not needed when a module",
        r"DistributedDataParallel device_ids and output_device arguments only work",
    ),
)
def ddp_device_ids_wrong(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """DistributedDataParallel is given the wrong device_ids or module.

    ## Why it matters
    `device_ids can only be None or contain a single element`, `object of type 'int' has no len()`, or, for a model on
    the CPU, `device_ids and output_device arguments only work with single-device/multiple-device GPU modules`.

    ## Fix
    `DDP(model.to(local_rank), device_ids=[local_rank])` on a GPU; no device_ids on the CPU.
    """
    for module in modules(script):
        for call in module.calls("DDP"):
            given = argument(call, 1, "device_ids")
            if given is None or has_more(call) or is_test(module):
                continue
            problem, edits = _ids(module, call, given)
            start = start_of(module, launch)
            if not problem and (start is None or start.per_node != 1) and _is_one_gpu(module, given):
                problem, edits = _of_others(module, call, given)
            if problem:
                yield point(module, given, f"{problem}; expected device_ids=[local_rank]", "[local_rank]", edits=edits)


def _ids(module: Module, call: ast.Call, given: ast.expr) -> tuple[str, tuple[Edit, ...]]:
    found = each_rank(module, given)
    model = argument(call, 0, "module")
    on_cpu = model is not None and _is_on_cpu(module, model)
    none = without_argument(module, call, given) if on_cpu and _is_of_cpu(module) else ()
    if all(type(v) is int for v in found) or (isinstance(given, ast.Name) and given.id in RANK_NAMES):
        seen = code(module, given)
        return f"device_ids={seen} is a number (TypeError: object of type 'int' has no len())", (
            none or (replace(module, given, f"[{seen}]"),)
        )
    if all(isinstance(v, (list, tuple)) and len(v) > 1 for v in found):
        own = (replace(module, given, '[int(os.environ["LOCAL_RANK"])]'), *imported(module, "os", "import os"))
        told = f"device_ids has {len(found[0])} devices, one process drives one GPU (ValueError)"  # type: ignore[arg-type]
        return told, none or (() if module.spawns else own)
    if model is not None and on_cpu and value(module, given) not in (None, []):
        return (
            f"{code(module, model)} is still on the CPU when it is wrapped with device_ids (ValueError)",
            none or _on_device(module, model, given),
        )
    return "", ()


def _is_one_gpu(module: Module, given: ast.expr) -> bool:
    """`device_ids=[0]` where the file itself gives each rank the GPU of its local rank."""
    found = each_rank(module, given)
    if "CUDA_VISIBLE_DEVICES" in module.text or not all(isinstance(v, (list, tuple)) and len(v) == 1 for v in found):
        return False
    if type(found[0][0]) is not int or any(v != found[0] for v in found):  # type: ignore[index]
        return False
    moves = (*module.calls("cuda.set_device"), *module.method_calls.get("cuda", ()), *module.method_calls.get("to", ()))
    chosen = [each_rank(module, c.args[0]) for c in moves if c.args]
    own = (LOCAL_RANKS, [TorchDevice("cuda", rank) for rank in LOCAL_RANKS])
    return any(each in own for each in chosen)


def _of_others(module: Module, call: ast.Call, given: ast.expr) -> tuple[str, tuple[Edit, ...]]:
    output = argument(call, 2, "output_device")
    named = (given,) if output is None else (given, output)
    told = f"device_ids={code(module, given)} is the GPU of one rank, and the model of the others lies elsewhere (ValueError)"
    return told, without_argument(module, call, *named)


def _is_of_cpu(module: Module) -> bool:
    return "gloo" in module.text and "nccl" not in module.text and "cuda" not in module.text


def _on_device(module: Module, model: ast.expr, given: ast.expr) -> tuple[Edit, ...]:
    """The model moves to the device that device_ids name."""
    one = given.elts[0] if isinstance(given, (ast.List, ast.Tuple)) and len(given.elts) == 1 else None
    return (replace(module, model, f"{code(module, model)}.to({code(module, one)})"),) if one is not None else ()


def _is_on_cpu(module: Module, model: ast.expr) -> bool:
    """A model of a class of this file, or of torch.nn, that nothing moves to a GPU."""
    if "set_default_device" in module.text:
        return False
    if isinstance(model, ast.Call):
        return (module.names.of(model.func) or "").startswith("nn.") and not model.keywords
    if not isinstance(model, ast.Name):
        return False
    bound = module.names.bindings(model.id, module.index.scope(model))
    bindings = [b for b in bound[1] if b.line < model.lineno] if bound is not None else []
    if len(bindings) != 1 or bindings[0].how is not Bound.VALUE or not isinstance(bindings[0].value, ast.Call):
        return False
    made = bindings[0].value
    owner = module.class_named(made.func)
    is_layer = (module.names.of(made.func) or "").startswith("nn.")
    if not is_layer and (owner is None or not module.is_a(owner, "nn.Module")):
        return False
    if owner is not None and any(word in ast.unparse(owner) for word in ("cuda", "device", ".to(")):
        return False
    moves = [c for name in ("to", "cuda", "half", "apply") for c in module.method_calls.get(name, ())]
    return (
        not any(isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == model.id for c in moves)
        and not made.keywords
    )


@cause(
    "SCRIPT058",
    "device-map-auto",
    Severity.ERROR,
    signatures=(r"loaded with `?device_map='auto'`? in any distributed mode",),
)
def device_map_auto(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """device_map="auto" spreads the model over all GPUs of every rank.

    ## Why it matters
    `You can't train a model that has been loaded with device_map='auto' in any distributed mode.` Each rank takes all
    GPUs for its own copy.

    ## Fix
    `device_map={"": local_rank}` or none at all under a launcher; plain python where one process shall use all GPUs.
    """
    for module in modules(script):
        start = start_of(module, launch)
        trains = module.calls("DDP", "FSDP") or _trainer(module)
        if not trains or (start is not None and start.world == 1):
            continue
        certain = (start is not None and start.gives_ranks) or bool(
            module.calls("DDP", "FSDP", "dist.init_process_group")
        )
        if start is not None and not start.gives_ranks:
            continue
        for call in module.index.calls:
            given = argument(call, None, "device_map")
            if given is None or value(module, given) != "auto":
                continue
            yield point(
                module,
                given,
                'device_map="auto" lets every rank spread the model over all GPUs: training under a launcher raises a '
                'ValueError; expected device_map={"": local_rank}',
                '{"": int(os.environ["LOCAL_RANK"])}',
                severity=None if certain or "LOCAL_RANK" in module.text else Severity.NOTE,
                edits=(
                    replace(module, given, '{"": int(os.environ["LOCAL_RANK"])}'),
                    *imported(module, "os", "import os"),
                ),
            )


def _trainer(module: Module) -> bool:
    names = [getattr(c.func, "id", getattr(c.func, "attr", "")) for c in module.index.calls]
    return any(n.endswith("Trainer") for n in names) and "transformers" in module.text


_LOADS = re.compile(r"(?i)load|resume|restart|restore")


@cause(
    "SCRIPT062",
    "checkpoint-has-module-prefix",
    Severity.WARNING,
    signatures=(r'Unexpected key\(s\) in state_dict: "module\.',),
)
def checkpoint_has_module_prefix(script: Script) -> Iterator[Finding]:
    """The checkpoint was saved from the DDP wrapper.

    ## Why it matters
    Every key begins with `module.`: loaded without the wrapper it says `Missing key(s) in state_dict` and `Unexpected
    key(s) in state_dict: "module.…"`.

    ## Fix
    Save `ddp.module.state_dict()`.
    """
    for module in modules(script):
        wrapped = _certainly_wrapped(module)
        if not wrapped or '"module."' in module.text or "'module." in module.text or "hasattr" in module.text:
            continue
        for call in module.calls("torch.save"):
            for state in _states(module, call):
                func = state.func
                if (
                    not isinstance(func, ast.Attribute)
                    or func.attr != "state_dict"
                    or ast.unparse(func.value) not in wrapped
                ):
                    continue
                if _loads_wrapped(module, ast.unparse(func.value)) or not _is_after_wrap(module, state):
                    continue
                name = code(module, func.value)
                yield point(
                    module,
                    state,
                    f'{name} is the DDP wrapper here, so that every key of the checkpoint begins with "module."; expected '
                    f"{name}.module.state_dict()",
                    f"{name}.module.state_dict()",
                    edits=(replace(module, func.value, f"{name}.module"),),
                )


def _states(module: Module, save: ast.Call) -> Iterator[ast.Call]:
    """The calls in what is saved, also where a name holds it."""
    given = argument(save, 0, "obj")
    held = last_value(module, given) if isinstance(given, ast.Name) else given
    for root in (save, held):
        if root is not None and not (root is held and held is given):
            yield from (n for n in ast.walk(root) if isinstance(n, ast.Call))


def _certainly_wrapped(module: Module) -> set[str]:
    """Names that hold a DDP wrapper whatever the condition."""
    found = set()
    for call in module.calls("DDP"):
        parent = module.index.parents.get(call)
        guarded = any(isinstance(p, ast.If) and not _is_main(p) for p, _ in module.index.enclosing(call))
        if isinstance(parent, ast.Assign) and not guarded:
            found |= {ast.unparse(t) for t in parent.targets}
    return found


def _is_main(statement: ast.If) -> bool:
    return "__name__" in ast.dump(statement.test)


def _loads_wrapped(module: Module, name: str) -> bool:
    """Whether the same file loads checkpoints into the wrapper: then the keys fit."""
    for call in module.index.calls:
        last = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = (*call.args, *(k.value for k in call.keywords))
        if _LOADS.search(last) and any(ast.unparse(each) == name for each in given):
            return True
    loads = module.method_calls.get("load_state_dict", ())
    return any(isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == name for c in loads)


def _is_after_wrap(module: Module, node: ast.expr) -> bool:
    wraps = module.calls("DDP")
    same = [w for w in wraps if module.index.function_of(w) is module.index.function_of(node)]
    if not same:
        return any("self" in ast.unparse(t) for w in wraps for t in getattr(module.index.parents.get(w), "targets", ()))
    return any(w.lineno < node.lineno for w in same)
