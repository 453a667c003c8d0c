"""The values of a function's parameters: from its calls, from the start of its process, or from the default."""

from __future__ import annotations

import ast

from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown, known, worst
from ddpdoctor.scripts.interpreter.evaluator import Evaluator
from ddpdoctor.scripts.interpreter.frames import CallFrame, DeferredArgument
from ddpdoctor.scripts.syntax.index import Binding
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["argument_of", "bound_arguments", "merged_value", "parameter_value"]


def merged_value(values: list[tuple[object, bool]]) -> object:
    """One value from several possible ones, each with whether it is a default: computed values take precedence over defaults."""
    if not values:
        return Unknown.SAME
    computed = [value for value, is_default in values if not is_default]
    candidates = computed or [value for value, _ in values]
    first = candidates[0]
    if all(type(v) is type(first) and v == first for v in candidates[1:]):
        return first
    if not computed:
        return Unknown.SAME
    return worst(*candidates) if not any(known(v) for v in candidates) else Unknown.VARIES


def _defaults(function: Function) -> dict[str, ast.expr]:
    """The default values by parameter name."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    by_name = {a.arg: d for a, d in zip(with_default, arguments.defaults, strict=True)}
    keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return by_name | {a.arg: d for a, d in keyword_only if d is not None}


def argument_of(call: ast.Call, function: Function, name: str, is_method: bool) -> ast.expr | None:
    """The expression that a call passes for a parameter; None if it has the default or cannot be matched."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if is_method:
        names = names[1:]
    if name in names and not any(isinstance(a, ast.Starred) for a in call.args):
        position = names.index(name)
        if position < len(call.args):
            return call.args[position]
    return None


def parameter_value(evaluator: Evaluator, binding: Binding, function: Function | None, module: Module) -> object:
    """The value of a parameter that all calls of the function in its file, and all starts of processes, agree on."""
    if function is None or not isinstance(binding.at, ast.arg):
        return Unknown.SAME
    name = binding.at.arg
    is_method = isinstance(module.index.parents.get(function), ast.ClassDef)
    values: list[tuple[object, bool]] = []
    for call in module.callers.get(function, ()):
        given = argument_of(call, function, name, is_method) or binding.value
        if given is None:
            return Unknown.SAME
        value = evaluator.value(given, evaluator.frame_of(given, module))
        values.append((value, assumptions.is_default(given)))
    values += [(value, False) for value in _values_from_spawns(evaluator, name, function, module)]
    if not values and binding.value is not None and not evaluator.trusting:
        return Unknown.SAME
    return merged_value(values)


def _values_from_spawns(evaluator: Evaluator, name: str, function: Function, module: Module) -> list[object]:
    """The value that each start of processes with this function passes for a parameter."""
    values: list[object] = []
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    for spawn in module.spawns:
        if spawn.function is not function or name not in names:
            continue
        position = names.index(name) - spawn.indexed
        if position < 0:
            values.append(assumptions.process_index(evaluator.context))
        elif position < len(spawn.arguments):
            values.append(_process_argument(evaluator, spawn.arguments[position], module))
        else:
            values.append(Unknown.SAME)
    return values


def _process_argument(evaluator: Evaluator, given: ast.expr, module: Module) -> object:
    """The value of an argument of a started process: the counter of the loop that starts it is the process's index."""
    if isinstance(given, ast.Name):
        for parent, _ in module.index.enclosing(given):
            if isinstance(parent, (ast.For, ast.comprehension, ast.ListComp)):
                loops = parent.generators if isinstance(parent, ast.ListComp) else [parent]
                if any(isinstance(x.target, ast.Name) and x.target.id == given.id for x in loops):
                    return assumptions.process_index(evaluator.context)
    return evaluator.value(given, evaluator.frame_of(given, module))


def bound_arguments(call: ast.Call, function: Function, frame: CallFrame) -> dict[str, object]:
    """The arguments of one call by parameter name, to be evaluated when they are read."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    is_method = bool(names) and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute)
    bound: dict[str, object] = {}
    for name in names[1:] if is_method else names:
        given = argument_of(call, function, name, is_method)
        if given is not None:
            bound[name] = DeferredArgument(given, frame)
    for name, default in _defaults(function).items():
        if name not in bound:
            bound[name] = DeferredArgument(default, CallFrame(frame.module))
    return bound
