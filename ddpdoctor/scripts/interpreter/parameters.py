"""What the parameters of a function hold: what its calls give, what starts its process, or the default."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import CallFrame, DeferredArgument, Unknown, known, worst
from ddpdoctor.scripts.syntax.index import Binding
from ddpdoctor.scripts.syntax.nodes import Function

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import RankEvaluator
    from ddpdoctor.scripts.syntax.module import Module

__all__ = ["argument_of", "bound_arguments", "merged_values", "parameter_value"]


def merged_values(values: list[tuple[object, bool]]) -> object:
    """One value from several: constants give way to what was computed, as defaults for runs without ranks do."""
    if not values:
        return Unknown.SAME
    computed = [v for v, literal in values if not literal]
    candidates = computed or [v for v, _ in values]
    first = candidates[0]
    if all(type(v) is type(first) and v == first for v in candidates[1:]):
        return first
    if not computed:
        return Unknown.SAME
    return worst(*candidates) if not any(known(v) for v in candidates) else Unknown.VARIES


def _defaults(function: Function) -> list[tuple[str, ast.expr]]:
    positional = [*function.args.posonlyargs, *function.args.args]
    found = list(
        zip(
            (a.arg for a in positional[len(positional) - len(function.args.defaults) :]),
            function.args.defaults,
            strict=True,
        )
    )
    found += [
        (a.arg, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None
    ]
    return found


def argument_of(call: ast.Call, function: Function, name: str, is_method: bool) -> ast.expr | None:
    """The expression that a call gives for a parameter, None for its default or what cannot be matched."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if is_method:
        names = names[1:]
    if name in names and not any(isinstance(a, ast.Starred) for a in call.args):
        at = names.index(name)
        if at < len(call.args):
            return call.args[at]
    return None


def parameter_value(evaluator: RankEvaluator, binding: Binding, function: Function | None, module: Module) -> object:
    if function is None or not isinstance(binding.at, ast.arg):
        return Unknown.SAME
    values: list[tuple[object, bool]] = []
    for call in module.callers.get(function, ()):
        given = argument_of(
            call, function, binding.at.arg, isinstance(module.index.parents.get(function), ast.ClassDef)
        )
        if given is None:
            given = binding.value
        if given is None:
            return Unknown.SAME
        values.append((evaluator.value(given, evaluator.frame_of(given, module)), isinstance(given, ast.Constant)))
    values += [(v, False) for v in _spawned(evaluator, binding.at.arg, function, module)]
    if not values and binding.value is not None and not evaluator.trusting:
        return Unknown.SAME
    return merged_values(values)


def _spawned(evaluator: RankEvaluator, name: str, function: Function, module: Module) -> list[object]:
    found: list[object] = []
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    for each in module.spawns:
        if each.function is not function or name not in names:
            continue
        at = names.index(name) - (1 if each.indexed else 0)
        if at < 0:
            found.append(evaluator.context.local_rank)
        elif at < len(each.arguments):
            given = each.arguments[at]
            found.append(_process_argument(evaluator, given, module))
        else:
            found.append(Unknown.SAME)
    return found


def _process_argument(evaluator: RankEvaluator, given: ast.expr, module: Module) -> object:
    """A loop's counter that is given to each process that the loop starts is that process's index."""
    if isinstance(given, ast.Name):
        for parent, _ in module.index.enclosing(given):
            if isinstance(parent, (ast.For, ast.comprehension, ast.ListComp)):
                loops = parent.generators if isinstance(parent, ast.ListComp) else [parent]
                if any(isinstance(x.target, ast.Name) and x.target.id == given.id for x in loops):
                    return evaluator.context.local_rank
    return evaluator.value(given, evaluator.frame_of(given, module))


def bound_arguments(
    evaluator: RankEvaluator, call: ast.Call, function: Function, frame: CallFrame
) -> dict[str, object]:
    """What the parameters of a function hold in one call of it."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    is_method = bool(names) and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute)
    found: dict[str, object] = {}
    for name in names[1:] if is_method else names:
        given = argument_of(call, function, name, is_method)
        if given is not None:
            found[name] = DeferredArgument(given, frame)
    given_anyway = dict(_defaults(function))
    for name in names:
        if name not in found and name in given_anyway:
            found[name] = DeferredArgument(given_anyway[name], CallFrame(frame.module))
    return found
