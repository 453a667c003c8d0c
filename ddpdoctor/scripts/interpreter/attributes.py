"""What attributes hold: self.rank, args.local_rank, fields of dataclasses, what frameworks offer."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.operators import result_or_unknown
from ddpdoctor.scripts.interpreter.parameters import merged_values
from ddpdoctor.scripts.interpreter.reaching_definitions import reaching_value
from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, CallResult, Device, Unknown
from ddpdoctor.scripts.syntax.index import Binding, Bound, Index
from ddpdoctor.scripts.syntax.instances import instance_of
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.vocabulary import ATTRIBUTES, PARAMETERS, SUBGROUP

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator

__all__ = ["attribute_value"]


_OPTIONS = re.compile(r"(?i)^_?(args?|opts?|options?|flags?|config|cfg|conf|hparams|params|parsed|cmd_args|hps?)$")


def attribute_value(evaluator: RankEvaluator, node: ast.Attribute, frame: CallFrame) -> object:
    """The value of `base.name`."""
    module = frame.module
    dotted = module.names.of(node)
    if dotted is not None and dotted in ("dist.group.WORLD", "dist.GroupMember.WORLD"):
        return None
    if isinstance(node.value, ast.Name):
        value = _assigned(evaluator, node.value.id, node, frame)
        if value is not NotImplemented:
            return value
    word = ATTRIBUTES.get(node.attr)
    if word is not None and dotted is None:
        return evaluator.rank_property(word)
    if node.attr in ("local_rank",) and _is_self_of_framework(node, frame):
        return evaluator.context.local_rank
    is_told = node.attr in PARAMETERS or dotted is not None
    there = instance_of(module, node.value) if isinstance(node.value, ast.Name) and not is_told else None
    if there is not None:
        value = _of_class(evaluator, there[1], node, CallFrame(there[0]))
        if value is not NotImplemented:
            return value
    base = evaluator.value(node.value, frame)
    if isinstance(base, CallResult) and base.name == "parse_args":
        return _parsed(evaluator, base, node, frame)
    if isinstance(base, CallResult) and base.name in ("argparse.Namespace", "types.SimpleNamespace"):
        given = next((k.value for k in base.call.keywords if k.arg == node.attr), None)
        if given is not None and isinstance(base.frame, CallFrame):
            return evaluator.value(given, base.frame)
    if isinstance(base, Device) and node.attr in ("index", "type"):
        return getattr(base, node.attr)
    if evaluator.trusting and dotted is None:
        word = PARAMETERS.get(node.attr)
        if word is not None:
            return evaluator.rank_property(word)
        if SUBGROUP.search(node.attr) or node.attr.endswith("rank"):
            return Unknown.VARIES
    return (
        base
        if base in (Unknown.DATA, Unknown.VARIES) and node.attr not in ("shape", "dtype", "device")
        else Unknown.SAME
    )


def _parsed(evaluator: RankEvaluator, made: CallResult, node: ast.Attribute, frame: CallFrame) -> object:
    """An option of what parse_args gave, whatever its name; one that is assigned anywhere in the file is not known."""
    own = made.frame.module if isinstance(made.frame, CallFrame) else frame.module
    option = own.options.get(node.attr)
    kept = any(attr == node.attr for module in (own, frame.module) for _, attr in module.index.attributes)
    if option is not None and not kept:
        return _option(evaluator, node.attr, option, made.frame if isinstance(made.frame, CallFrame) else frame)
    word = PARAMETERS.get(node.attr)
    return evaluator.rank_property(word) if word is not None and evaluator.trusting else Unknown.SAME


def _is_self_of_framework(node: ast.Attribute, frame: CallFrame) -> bool:
    return bool(frame.module.frameworks & {"lightning", "pytorch_lightning", "lightning_fabric", "transformers"})


def _assigned(evaluator: RankEvaluator, base: str, node: ast.Attribute, frame: CallFrame) -> object:
    module = frame.module
    owner = module.class_of_value(node.value)
    if owner is not None:
        return _of_class(evaluator, owner, node, frame)
    assigned = module.index.attributes.get((base, node.attr), [])
    around = {node, *(parent for parent, _ in module.index.enclosing(node))} if assigned else ()
    assigned = [b for b in assigned if b.value is not None and b.value not in around]
    option = module.options.get(node.attr) if _OPTIONS.match(base) else None
    if option is not None and all(_is_later(module.index, b, node) for b in assigned):
        return _option(evaluator, node.attr, option, frame)
    return _last(evaluator, assigned, node, frame) if assigned else NotImplemented


def _is_later(index: Index, binding: Binding, node: ast.Attribute) -> bool:
    """Whether an assignment in the same function, outside of any loop, comes after a use."""
    in_loop = any(isinstance(p, (ast.For, ast.AsyncFor, ast.While)) for p, _ in index.enclosing(binding.at))
    return index.function_of(binding.at) is index.function_of(node) and binding.line > node.lineno and not in_loop


def _last(evaluator: RankEvaluator, assigned: list[Binding], node: ast.Attribute, frame: CallFrame) -> object:
    """What the assignments before this use in its own function give; where there is none, what the others agree on.

    In which order the other functions run is not known: none of them takes another's assignment back.
    """
    index = frame.module.index
    here = index.function_of(node)
    own = [b for b in assigned if index.function_of(b.at) is here and b.line <= node.lineno]
    by_function: dict[Function | None, list[Binding]] = {}
    for each in own or assigned:
        by_function.setdefault(index.function_of(each.at), []).append(each)
    found = []
    for bindings in by_function.values():
        value = reaching_value(evaluator, [(b, _read(evaluator, b, frame)) for b in bindings], node, frame)
        found.append((value, all(isinstance(b.value, ast.Constant) for b in bindings)))
    return merged_values(found) if len(found) > 1 else found[0][0]


def _read(evaluator: RankEvaluator, binding: Binding, frame: CallFrame) -> Callable[[], object]:
    def read() -> object:
        if binding.how is not Bound.VALUE or binding.value is None:
            return Unknown.SAME
        return evaluator.value(binding.value, evaluator.frame_of(binding.value, frame.module))

    return read


def _of_class(evaluator: RankEvaluator, owner: ast.ClassDef, node: ast.Attribute, frame: CallFrame) -> object:
    module = frame.module
    target = module.method(owner, node.attr)
    if target is not None:
        properties = [module.names.of(d) or getattr(d, "attr", "") for d in target.function.decorator_list]
        is_property = any(p in ("property", "functools.cached_property", "cached_property") for p in properties)
        return evaluator.returned(module, target.function, {}) if is_property else Unknown.SAME
    bindings = [b for b in module.index.attributes.get(("self", node.attr), []) if module.index.class_of(b.at) is owner]
    bindings += module.index.scopes[owner].names.get(node.attr, []) if not bindings else []
    for base in owner.bases:
        parent = module.class_named(base)
        if parent is not None and parent is not owner and not bindings:
            return _of_class(evaluator, parent, node, frame)
    bindings = [b for b in bindings if b.value is not None]
    candidates = [(b, _field(evaluator, b, frame)) for b in bindings]
    return reaching_value(evaluator, candidates, node, frame) if candidates else NotImplemented


def _field(evaluator: RankEvaluator, binding: Binding, frame: CallFrame) -> Callable[[], object]:
    value = binding.value
    if isinstance(value, ast.Call) and frame.module.names.of(value.func) in ("dataclasses.field", "field"):
        given = {k.arg: k.value for k in value.keywords}
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            value = factory.body
        else:
            value = given.get("default")
        return lambda: (
            Unknown.SAME if value is None else evaluator.value(value, evaluator.frame_of(value, frame.module))
        )
    return _read(evaluator, binding, frame)


def _option(evaluator: RankEvaluator, name: str, option: ast.Call, frame: CallFrame) -> object:
    """A command line option: --local_rank is what torch.distributed.launch passes, others hold their default's source."""
    given = {k.arg: k.value for k in option.keywords}
    kind = given.get("type")
    is_text = kind is None or frame.module.names.of(kind) == "str"
    if name == "local_rank":
        return str(evaluator.context.local_rank) if is_text and "action" not in given else evaluator.context.local_rank
    default = given.get("default")
    if default is None or isinstance(default, ast.Constant):
        word = PARAMETERS.get(name)
        return Unknown.SAME if word is None or not evaluator.trusting else evaluator.rank_property(word)
    value = evaluator.value(default, evaluator.frame_of(default, frame.module))
    if isinstance(value, str) and not is_text:
        return result_or_unknown(int, value)
    return value
