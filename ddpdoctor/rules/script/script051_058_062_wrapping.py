"""SCRIPT051, SCRIPT058, and SCRIPT062: the model and its DDP wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import has_mistake
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
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice
from ddpdoctor.scripts.interpreter.assumptions import RANK_NAMES
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


class _WrongDevices(NamedTuple):
    """What is wrong with device_ids: the headline, the text of the caret, and the edits."""

    message: str
    label: str
    edits: tuple[Edit, ...]


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
    """DistributedDataParallel gets the wrong device_ids or module.

    ## Why it matters
    It fails with `device_ids can only be None or contain a single element` or `object of type 'int' has no len()`.
    For a model on the CPU the error is `device_ids and output_device arguments only work with
    single-device/multiple-device GPU modules`.

    ## Fix
    Write `DDP(model.to(local_rank), device_ids=[local_rank])` on a GPU, and no device_ids on the CPU.

    ## Example
        # before
        ddp = DDP(model, device_ids=local_rank)
        # TypeError: object of type 'int' has no len()

        # after
        ddp = DDP(model.to(local_rank), device_ids=[local_rank])
    """
    for module in modules(script):
        for call in module.calls("DDP"):
            given = argument(call, 1, "device_ids")
            if given is None or has_more(call) or is_test(module):
                continue
            problem = _ids(module, call, given)
            start = start_of(module, launch)
            if problem is None and (start is None or start.per_node != 1) and _is_one_gpu(module, given):
                problem = _of_others(module, call, given)
            if problem is not None:
                yield point(module, given, problem.message, "[local_rank]", label=problem.label, edits=problem.edits)


def _ids(module: Module, call: ast.Call, given: ast.expr) -> _WrongDevices | None:
    """What is wrong with the device_ids of a call, by themselves and for the model."""
    devices = each_rank(module, given)
    model = argument(call, 0, "module")
    on_cpu = model is not None and _is_on_cpu(module, model)
    removed = without_argument(module, call, given) if on_cpu and _is_of_cpu(module) else ()
    if all(type(v) is int for v in devices) or (isinstance(given, ast.Name) and given.id in RANK_NAMES):
        written = code(module, given)
        edits = removed or (replace(module, given, f"[{written}]"),)
        return _WrongDevices(f"device_ids={written} is a number, not a list", "TypeError: use [local_rank]", edits)
    if all(isinstance(v, (list, tuple)) and len(v) > 1 for v in devices):
        own = (replace(module, given, '[int(os.environ["LOCAL_RANK"])]'), *imported(module, "os", "import os"))
        count = len(devices[0])  # type: ignore[arg-type]
        return _WrongDevices(
            f"device_ids has {count} devices, but each process drives one GPU",
            "ValueError: use [local_rank]",
            removed or (() if module.spawns else own),
        )
    if model is not None and on_cpu and value(module, given) not in (None, []):
        return _WrongDevices(
            f"{code(module, model)} is still on the CPU when DDP gets device_ids",
            "ValueError: move the model to its GPU",
            removed or _on_device(module, model, given),
        )
    return None


def _is_one_gpu(module: Module, given: ast.expr) -> bool:
    """Whether it is `device_ids=[0]`, although the file moves each rank to the GPU of its local rank."""
    devices = each_rank(module, given)
    if "CUDA_VISIBLE_DEVICES" in module.text or not all(isinstance(v, (list, tuple)) and len(v) == 1 for v in devices):
        return False
    if type(devices[0][0]) is not int or any(v != devices[0] for v in devices):  # type: ignore[index]
        return False
    moves = (*module.calls("cuda.set_device"), *module.method_calls.get("cuda", ()), *module.method_calls.get("to", ()))
    chosen = [each_rank(module, c.args[0]) for c in moves if c.args]
    own = (LOCAL_RANKS, [TorchDevice("cuda", rank) for rank in LOCAL_RANKS])
    return any(devices_of_ranks in own for devices_of_ranks in chosen)


def _of_others(module: Module, call: ast.Call, given: ast.expr) -> _WrongDevices:
    """The same GPU on every rank, although the model of each rank is on a GPU of its own."""
    output = argument(call, 2, "output_device")
    named = (given,) if output is None else (given, output)
    message = f"device_ids={code(module, given)} is the same GPU on every rank"
    edits = without_argument(module, call, *named)
    return _WrongDevices(message, "ValueError: the other models are on other GPUs", edits)


def _is_of_cpu(module: Module) -> bool:
    return "gloo" in module.text and "nccl" not in module.text and "cuda" not in module.text


def _on_device(module: Module, model: ast.expr, given: ast.expr) -> tuple[Edit, ...]:
    """Move the model to the device in device_ids."""
    one = given.elts[0] if isinstance(given, (ast.List, ast.Tuple)) and len(given.elts) == 1 else None
    return (replace(module, model, f"{code(module, model)}.to({code(module, one)})"),) if one is not None else ()


def _is_on_cpu(module: Module, model: ast.expr) -> bool:
    """Whether a model of a class of this file, or of torch.nn, is never moved to a GPU."""
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
    if module.index.function_of(made) is module.index.function_of(model):
        moves = [
            c
            for c in moves
            if c.lineno <= model.lineno or module.index.function_of(c) is not module.index.function_of(model)
        ]
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
    """device_map="auto" spreads the model over all GPUs on every rank.

    ## Why it matters
    Each rank uses all GPUs for its own copy. The Trainer fails with `You can't train a model that has been loaded
    with device_map='auto' in any distributed mode.`

    ## Fix
    Pass `device_map={"": local_rank}`, or no device_map at all, under a launcher.

    If one process is to use all GPUs, start it with plain `python`.

    ## Example
        # before
        model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")
        trainer.train()
        # ValueError: You can't train a model that has been loaded with device_map='auto' in any distributed mode.

        # after
        model = AutoModelForCausalLM.from_pretrained(name, device_map={"": int(os.environ["LOCAL_RANK"])})
        trainer.train()
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
                'device_map="auto" spreads the model over all GPUs on every rank',
                '{"": int(os.environ["LOCAL_RANK"])}',
                label="ValueError under a launcher",
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
    Every key begins with `module.`. Loading it without the wrapper fails with `Missing key(s) in state_dict` and
    `Unexpected key(s) in state_dict: "module.…"`.

    ## Fix
    Save `ddp.module.state_dict()`.

    ## Example
        # before
        torch.save(ddp.state_dict(), "model.pt")
        # on load: Unexpected key(s) in state_dict: "module.weight", ...

        # after
        torch.save(ddp.module.state_dict(), "model.pt")
    """
    for module in modules(script):
        wrapped = _certainly_wrapped(module)
        if not wrapped or '"module."' in module.text or "'module." in module.text or "hasattr" in module.text:
            continue
        if has_mistake(module, MistakeKind.NAMES_OF_WRAPPER):
            continue  # SCRIPT693 names the place that fails
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
                    f'{name}.state_dict() saves the DDP wrapper: every key begins with "module."',
                    f"{name}.module.state_dict()",
                    label="loading it without DDP fails",
                    fix=f"Save `{name}.module.state_dict()`.",
                    edits=(replace(module, func.value, f"{name}.module"),),
                )


def _states(module: Module, save: ast.Call) -> Iterator[ast.Call]:
    """The calls in what is saved, also through a name that holds it."""
    given = argument(save, 0, "obj")
    held = last_value(module, given) if isinstance(given, ast.Name) else given
    for root in (save, held):
        if root is not None and not (root is held and held is given):
            yield from (n for n in ast.walk(root) if isinstance(n, ast.Call))


def _certainly_wrapped(module: Module) -> set[str]:
    """Names that hold a DDP wrapper under every condition."""
    names = set()
    for call in module.calls("DDP"):
        parent = module.index.parents.get(call)
        guarded = any(isinstance(p, ast.If) and not _is_main(p) for p, _ in module.index.enclosing(call))
        if isinstance(parent, ast.Assign) and not guarded:
            names |= {ast.unparse(t) for t in parent.targets}
    return names


def _is_main(statement: ast.If) -> bool:
    return "__name__" in ast.dump(statement.test)


def _loads_wrapped(module: Module, name: str) -> bool:
    """Whether the same file loads checkpoints into the wrapper, so that the keys match."""
    for call in module.index.calls:
        last = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = (*call.args, *(k.value for k in call.keywords))
        if _LOADS.search(last) and any(ast.unparse(argument_given) == name for argument_given in given):
            return True
    loads = module.method_calls.get("load_state_dict", ())
    return any(isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == name for c in loads)


def _is_after_wrap(module: Module, node: ast.expr) -> bool:
    wraps = module.calls("DDP")
    same = [w for w in wraps if module.index.function_of(w) is module.index.function_of(node)]
    if not same:
        return any("self" in ast.unparse(t) for w in wraps for t in getattr(module.index.parents.get(w), "targets", ()))
    return any(w.lineno < node.lineno for w in same)


@ddp_device_ids_wrong.look
def ids_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """device_ids that are not the device of the module."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.DEVICE_IDS,
        lambda o, who: f"device_ids is [{o.values['ids']}], the module is on {o.values['devices']}",
        label="not the device of the module",
        expected="the module's device",
    )
