"""SCRIPT055: training bypasses the DDP wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, is_quiet, is_test, last_value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT055", "ddp-module-bypassed", Severity.ERROR)
@with_histories(MistakeKind.WRAPPER_BYPASSED)
def ddp_module_bypassed(script: Script) -> Iterator[Finding]:
    """Training calls ddp.module, so that gradients are not averaged.

    ## Why it matters
    The forward pass of the wrapper prepares the averaging. Without it each rank keeps its own gradients, and the
    models diverge without an error.

    ## Fix
    Call the wrapper in training: `ddp(x)`.

    `ddp.module` is for evaluation, saving, and the methods of the model.

    ## Example
        # before
        loss = criterion(ddp.module(x), y)
        loss.backward()

        # after
        loss = criterion(ddp(x), y)
        loss.backward()
    """
    for module in modules(script):
        if not module.wrapped or not module.calls("DDP") or is_test(module):
            continue
        for call, bypass, wrapper in _bypassing_calls(module):
            loop = next((p for p, _ in module.index.enclosing(call) if isinstance(p, (ast.For, ast.While))), None)
            function = module.index.function_of(call)
            region: ast.AST | None = loop or function
            on_some_ranks = region is not None and in_rank_branch(module, call)  # such as an evaluation on rank 0
            if (
                region is not None
                and _has_backward(region)
                and not on_some_ranks
                and not _is_without_gradients(module, call)
                and not _is_frozen(region, call, wrapper)
            ):
                yield point(
                    module,
                    call,
                    f"{code(module, bypass)}() bypasses the DDP wrapper: gradients are not averaged",
                    f"{wrapper}(...)",
                    label=f"call {wrapper}() instead",
                    fix=f"Call the wrapper: `{wrapper}(...)`.",
                    edits=(replace(module, call.func, wrapper),),
                )
        for call, bypass, wrapper in _losses_of_methods(module):
            yield point(
                module,
                call,
                f"{code(module, bypass)}() bypasses the DDP wrapper: gradients are not averaged",
                f"{wrapper}(...)",
                label=f"{wrapper}() is never called",
                severity=None if _passes_forward(module, bypass.attr) else Severity.WARNING,
                fix=f"Compute the loss in the model's forward, or from the output of {wrapper}(...).",
            )
        for given, wrapper in _trained_by_a_function(module):
            yield point(
                module,
                given,
                f"{code(module, given)} is trained without its DDP wrapper: gradients are not averaged",
                wrapper,
                label=f"pass {wrapper}",
                fix=f"Pass {wrapper} to the function.",
                edits=(replace(module, given, wrapper),),
            )


def _bypassing_calls(module: Module) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """Calls of the model inside a wrapper: the call, what it calls, and the wrapper's name."""
    for call in module.index.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "forward":
            func = func.value
        inside = last_value(module, func) if isinstance(func, ast.Name) else func
        if isinstance(inside, ast.Attribute) and inside.attr == "module":
            wrapper = ast.unparse(inside.value)
            if wrapper in module.wrapped:
                yield call, func, wrapper
    for name, (wrapper, made) in _kept(module).items():
        function = module.index.function_of(made)
        calls = [c for c in module.index.calls if isinstance(c.func, ast.Name) and c.func.id == name]
        inner = [c for c in calls if module.index.function_of(c) is function and c.lineno > made.lineno]
        outer = [c for c in module.index.calls if ast.unparse(c.func) == wrapper] if inner else []
        if inner and not outer:
            yield from ((c, c.func, wrapper) for c in inner)


def _losses_of_methods(module: Module) -> Iterator[tuple[ast.Call, ast.Attribute, str]]:
    """`loss = ddp.module.compute_loss(x)` with a backward pass, if the wrapper is never called or passed on in this file."""
    for call in module.index.calls:
        bypass, statement = call.func, module.index.parents.get(call)
        inside = bypass.value if isinstance(bypass, ast.Attribute) else None
        name = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(bypass, ast.Attribute) or bypass.attr == "forward" or not isinstance(name, ast.Name):
            continue
        wrapper = ast.unparse(inside.value) if isinstance(inside, ast.Attribute) and inside.attr == "module" else ""
        function = module.index.function_of(call)
        goes_back = any(
            isinstance(b.func, ast.Attribute) and ast.unparse(b.func.value) == name.id
            for b in module.method_calls.get("backward", ())
            if module.index.function_of(b) is function
        )
        trains = goes_back and not in_rank_branch(module, call) and not _is_without_gradients(module, call)
        if wrapper in module.wrapped and trains and not _is_used(module, wrapper):
            yield call, bypass, wrapper


def _is_used(module: Module, wrapper: str) -> bool:
    """Whether the wrapper itself is called or passed to a function, or the gradients are reduced by hand."""
    if module.calls("dist.all_reduce", "dist.reduce_scatter_tensor"):
        return True
    nodes = (n for c in module.index.calls for n in (c.func, *c.args, *(k.value for k in c.keywords)))
    return any(ast.unparse(n) == wrapper for n in nodes if isinstance(n, (ast.Name, ast.Attribute)))


def _passes_forward(module: Module, method: str) -> bool:
    """Whether a method with this name calls its own model: `self(x)`."""
    functions = [f for f in module.index.scopes if isinstance(f, ast.FunctionDef) and f.name == method]
    calls = (n.func for f in functions for n in ast.walk(f) if isinstance(n, ast.Call))
    return any(ast.unparse(func) in ("self", "self.forward") for func in calls)


def _trained_by_a_function(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """The model inside a wrapper as argument of a function of this file that runs its forward and backward passes."""
    for call in module.index.calls:
        arguments = (*call.args, *(k.value for k in call.keywords))
        for given in arguments:
            inside = last_value(module, given) if isinstance(given, (ast.Name, ast.Attribute)) else None
            wrapper = ast.unparse(inside.value) if isinstance(inside, ast.Attribute) and inside.attr == "module" else ""
            if wrapper not in module.wrapped or any(ast.unparse(e) == wrapper for e in arguments):
                continue  # the function also gets the wrapper
            target = module.target(call) if not in_rank_branch(module, call) else None
            if target is not None and target.module is module and _trains(module, call, target.function, given):
                yield given, wrapper


def _trains(module: Module, by: ast.Call, function: Function, given: ast.expr) -> bool:
    """Whether a function calls its argument with gradients, and runs backward in the same loop or body."""
    is_method = isinstance(module.index.parents.get(function), ast.ClassDef)
    names = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
    passed = {name for name in names if argument_of(by, function, name, is_method) is given}
    for call in module.index.calls:
        if isinstance(call.func, ast.Name) and call.func.id in passed and module.index.function_of(call) is function:
            loop = next((p for p, _ in module.index.enclosing(call) if isinstance(p, (ast.For, ast.While))), None)
            if _has_backward(loop or function) and not _is_without_gradients(module, call):
                return True
    return False


def _kept(module: Module) -> dict[str, tuple[str, ast.Call]]:
    """Models that keep their own name besides that of their wrapper: `ddp = DDP(model)`."""
    wrappers = {}
    for made in module.calls("DDP"):
        statement = module.index.parents.get(made)
        model = argument(made, 0, "module")
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Name) and isinstance(model, ast.Name) and model.id != target.id:
            bound = module.names.bindings(model.id, module.index.scope(model))
            if bound is not None and not any(b.line > made.lineno for b in bound[1]):
                wrappers[model.id] = (target.id, made)
    return wrappers


def _has_backward(region: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(region))


def _is_frozen(region: ast.AST, call: ast.Call, wrapper: str) -> bool:
    """Whether the last `requires_grad_(…)` on the wrapper's parameters before a call, in its loop or function, is False."""
    last: tuple[int, ast.expr] | None = None
    for each in ast.walk(region):
        is_loop = isinstance(each, ast.For) and _is_of(each.iter, wrapper)
        for node in ast.walk(each) if is_loop else (each,):
            flag = _requires_grad(node, None if is_loop else wrapper)
            if flag is not None and flag.lineno < call.lineno and (last is None or flag.lineno >= last[0]):
                last = flag.lineno, flag
    return last is not None and isinstance(last[1], ast.Constant) and last[1].value is False


def _is_of(node: ast.expr, wrapper: str) -> bool:
    return ast.unparse(node).startswith((f"{wrapper}.parameters(", f"{wrapper}.module.parameters("))


def _requires_grad(node: ast.AST, owner: str | None) -> ast.expr | None:
    """The value that requires_grad gets in this node, of the wrapper `owner` or of any object."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        is_owned = owner is None or ast.unparse(node.func.value) in (owner, f"{owner}.module")
        return (node.args[0] if node.args else ast.Constant(True, lineno=node.lineno)) if is_owned else None
    if isinstance(node, ast.Assign) and owner is None:
        target = node.targets[0]
        return node.value if isinstance(target, ast.Attribute) and target.attr == "requires_grad" else None
    return None


def _is_without_gradients(module: Module, node: ast.AST) -> bool:
    return any(is_quiet(parent) for parent, _ in module.index.enclosing(node))


@ddp_module_bypassed.look
def bypassed_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The module inside DDP is called in training."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.BYPASSED,
        lambda o, who: "training calls the module inside DDP: no gradient is synchronized",
        label="call the DDP model itself",
        expected="model(x)",
    )
