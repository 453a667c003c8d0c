"""The values of attributes: self.rank, args.local_rank, fields of dataclasses, and what frameworks set."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, CallResult
from ddpdoctor.scripts.interpreter.operators import result_or_unknown
from ddpdoctor.scripts.interpreter.parameters import merged_value
from ddpdoctor.scripts.interpreter.reaching_definitions import reaching_value
from ddpdoctor.scripts.syntax.index import Binding, Bound, Index
from ddpdoctor.scripts.syntax.instances import instance_of
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["attribute_value", "value_by_name"]

_PROPERTIES = ("property", "functools.cached_property", "cached_property")


def attribute_value(evaluator: Evaluator, node: ast.Attribute, frame: CallFrame) -> object:
    """The value of `base.name`."""
    dotted = frame.module.names.of(node)
    if dotted in ("dist.group.WORLD", "dist.GroupMember.WORLD"):
        return None
    if dotted is not None and dotted.startswith("dist.ReduceOp."):
        return dotted
    if isinstance(node.value, ast.Name):
        value = _assigned_value(evaluator, node.value.id, node, frame)
        if value is not NotImplemented:
            return value
    rank_property = assumptions.RANK_ATTRIBUTES.get(node.attr)
    if rank_property is not None and dotted is None:
        return evaluator.rank_property(rank_property)
    if assumptions.is_framework_attribute(node.attr, frame.module):
        return evaluator.context.local_rank
    is_named = node.attr in assumptions.RANK_NAMES or dotted is not None
    instance = instance_of(frame.module, node.value) if isinstance(node.value, ast.Name) and not is_named else None
    if instance is not None:
        value = _value_in_class(evaluator, instance[1], node, CallFrame(instance[0]))
        if value is not NotImplemented:
            return value
    return _attribute_of_value(evaluator, node, frame, is_library=dotted is not None)


def _attribute_of_value(evaluator: Evaluator, node: ast.Attribute, frame: CallFrame, *, is_library: bool) -> object:
    """An attribute of the value of the base; if that is unknown, what the name of the attribute says."""
    base = evaluator.value(node.value, frame)
    if isinstance(base, CallResult) and base.name == "parse_args":
        return _parsed_option(evaluator, base, node, frame)
    if isinstance(base, CallResult) and base.name in ("argparse.Namespace", "types.SimpleNamespace"):
        given = next((k.value for k in base.call.keywords if k.arg == node.attr), None)
        if given is not None:
            return evaluator.value(given, base.frame)
    if isinstance(base, TorchDevice) and node.attr in ("index", "type"):
        return getattr(base, node.attr)
    if evaluator.trusting and not is_library:
        value = value_by_name(evaluator, node.attr)
        if value is not Unknown.SAME:
            return value
    is_own_data = base in (Unknown.DATA, Unknown.VARIES) and node.attr not in ("shape", "dtype", "device")
    return base if is_own_data else Unknown.SAME


def value_by_name(evaluator: Evaluator, name: str) -> object:
    """What the name says about the value: the rank, a rank in an unknown group, or nothing."""
    rank_property = assumptions.RANK_NAMES.get(name)
    if rank_property is not None:
        return evaluator.rank_property(rank_property)
    return Unknown.VARIES if assumptions.is_rank_of_unknown_group(name) else Unknown.SAME


def _parsed_option(evaluator: Evaluator, parsed: CallResult, node: ast.Attribute, frame: CallFrame) -> object:
    """An option of the result of parse_args; one that is also assigned anywhere in the files is unknown."""
    parser_module = parsed.frame.module
    option = parser_module.options.get(node.attr)
    attributes = (*parser_module.index.attributes, *frame.module.index.attributes)
    if option is not None and not any(name == node.attr for _, name in attributes):
        return _option_value(evaluator, node.attr, option, parsed.frame)
    rank_property = assumptions.RANK_NAMES.get(node.attr)
    return evaluator.rank_property(rank_property) if rank_property and evaluator.trusting else Unknown.SAME


def _assigned_value(evaluator: Evaluator, base: str, node: ast.Attribute, frame: CallFrame) -> object:
    """The value from assignments to `base.name`, or from the option of that name; NotImplemented without any."""
    module = frame.module
    owner = module.class_of_value(node.value)
    if owner is not None:
        return _value_in_class(evaluator, owner, node, frame)
    assigned = module.index.attributes.get((base, node.attr), [])
    around = {node, *(parent for parent, _ in module.index.enclosing(node))} if assigned else ()
    assigned = [b for b in assigned if b.value is not None and b.value not in around]
    option = module.options.get(node.attr) if assumptions.holds_options(base) else None
    if option is not None and all(_is_later(module.index, b, node) for b in assigned):
        return _option_value(evaluator, node.attr, option, frame)
    return _last_assigned(evaluator, assigned, node, frame) if assigned else NotImplemented


def _is_later(index: Index, binding: Binding, node: ast.Attribute) -> bool:
    """Whether an assignment in the same function, outside of any loop, comes after a use."""
    in_loop = any(isinstance(p, (ast.For, ast.AsyncFor, ast.While)) for p, _ in index.enclosing(binding.at))
    return index.function_of(binding.at) is index.function_of(node) and binding.line > node.lineno and not in_loop


def _last_assigned(evaluator: Evaluator, assigned: list[Binding], node: ast.Attribute, frame: CallFrame) -> object:
    """The value from the assignments before this use in its own function; without any, the one that the others agree on.

    The order in which the other functions run is not known: none of them overrides another's assignment.
    """
    index = frame.module.index
    use_function = index.function_of(node)
    own = [b for b in assigned if index.function_of(b.at) is use_function and b.line <= node.lineno]
    by_function: dict[Function | None, list[Binding]] = {}
    for binding in own or assigned:
        by_function.setdefault(index.function_of(binding.at), []).append(binding)
    values = []
    for bindings in by_function.values():
        value = reaching_value(evaluator, [(b, _deferred(evaluator, b, frame)) for b in bindings], node, frame)
        values.append((value, all(assumptions.is_default(b.value) for b in bindings)))
    return merged_value(values) if len(values) > 1 else values[0][0]


def _deferred(evaluator: Evaluator, binding: Binding, frame: CallFrame) -> Callable[[], object]:
    """The evaluation of the assigned expression, deferred until it is needed."""

    def evaluate() -> object:
        if binding.how is not Bound.VALUE or binding.value is None:
            return Unknown.SAME
        return evaluator.value(binding.value, evaluator.frame_of(binding.value, frame.module))

    return evaluate


def _value_in_class(evaluator: Evaluator, owner: ast.ClassDef, node: ast.Attribute, frame: CallFrame) -> object:
    """The value of a property, or of an attribute that the class or a base assigns; NotImplemented without one."""
    module = frame.module
    target = module.method(owner, node.attr)
    if target is not None:
        decorators = [module.names.of(d) or getattr(d, "attr", "") for d in target.function.decorator_list]
        is_property = any(name in _PROPERTIES for name in decorators)
        return evaluator.returned(module, target.function, {}) if is_property else Unknown.SAME
    bindings = [b for b in module.index.attributes.get(("self", node.attr), []) if module.index.class_of(b.at) is owner]
    bindings += module.index.scopes[owner].names.get(node.attr, []) if not bindings else []
    for base in owner.bases:
        parent = module.class_named(base)
        if parent is not None and parent is not owner and not bindings:
            return _value_in_class(evaluator, parent, node, frame)
    candidates = [(b, _deferred_field(evaluator, b, frame)) for b in bindings if b.value is not None]
    return reaching_value(evaluator, candidates, node, frame) if candidates else NotImplemented


def _deferred_field(evaluator: Evaluator, binding: Binding, frame: CallFrame) -> Callable[[], object]:
    """The evaluation of a class attribute; of `field(…)` in a dataclass, that of its default."""
    call = binding.value
    if not isinstance(call, ast.Call) or frame.module.names.of(call.func) not in ("dataclasses.field", "field"):
        return _deferred(evaluator, binding, frame)
    given = {k.arg: k.value for k in call.keywords}
    factory = given.get("default_factory")
    default = factory.body if isinstance(factory, ast.Lambda) else given.get("default")
    if default is None:
        return lambda: Unknown.SAME
    return lambda: evaluator.value(default, evaluator.frame_of(default, frame.module))


def _option_value(evaluator: Evaluator, name: str, option: ast.Call, frame: CallFrame) -> object:
    """A command line option: --local_rank as the launcher passes it, others from their default."""
    given = {k.arg: k.value for k in option.keywords}
    kind = given.get("type")
    is_text = kind is None or frame.module.names.of(kind) == "str"
    if assumptions.launcher_passes_local_rank(name):
        local_rank = evaluator.context.local_rank
        return str(local_rank) if is_text and "action" not in given else local_rank
    default = given.get("default")
    if default is None or isinstance(default, ast.Constant):
        rank_property = assumptions.RANK_NAMES.get(name)
        return evaluator.rank_property(rank_property) if rank_property and evaluator.trusting else Unknown.SAME
    value = evaluator.value(default, evaluator.frame_of(default, frame.module))
    if isinstance(value, str) and not is_text:
        return result_or_unknown(int, value)
    return value
