"""SCRIPT599: ranks whose forward pass uses different parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import argument, each_rank, is_test, last_value, value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function

_RELAXED = ("find_unused_parameters", "static_graph")


@cause("SCRIPT599", "forward-depends-on-rank", Severity.ERROR)
@with_histories(MistakeKind.FORWARD_RANDOM)
def forward_depends_on_rank(script: Script) -> Iterator[Finding]:
    """The rank decides which layers of a DDP model run.

    ## Why it matters
    DDP waits for the gradients of all parameters on every rank: the second step fails with `Expected to have finished
    reduction in the prior iteration before starting a new one`.

    ## Fix
    Create DDP with `find_unused_parameters=True`, or run all layers on every rank.

    ## Example
        # before
        model = DDP(net)
        model(x, task=rank % 2)  # forward runs self.heads[task]
        # RuntimeError: Expected to have finished reduction in the prior iteration ...

        # after
        model = DDP(net, find_unused_parameters=True)
        model(x, task=rank % 2)
    """
    for module in modules(script):
        if is_test(module):
            continue
        for made in module.calls("DDP"):
            parent = module.index.parents.get(made)
            names = {ast.unparse(t) for t in parent.targets} if isinstance(parent, ast.Assign) else set()
            if any(argument(made, None, flag) is not None for flag in _RELAXED) or any(
                k.arg is None for k in made.keywords
            ):
                continue
            forward = _forward_of(module, made)
            for call in module.index.calls if forward is not None else ():
                if forward is None or ast.unparse(call.func) not in names:
                    continue
                given = next(
                    (g for g, name in _arguments(call, forward) if _selects(forward, name) and _differs(module, g)),
                    None,
                )
                if given is not None:
                    yield point(
                        module,
                        made,
                        f"{code(module, given, 30)} differs between ranks and selects the layers of forward "
                        f"(line {call.lineno})",
                        "find_unused_parameters=True",
                        label="some layers get no gradient on some ranks",
                    )
                    break


def _forward_of(module: Module, made: ast.Call) -> Function | None:
    """The forward method of the class whose instance DDP wraps."""
    given = argument(made, 0, "module")
    node = last_value(module, given) if given is not None else None
    owner = module.class_of_value(node) if node is not None else None
    target = module.method(owner, "forward") if owner is not None else None
    return target.function if target is not None and target.module is module else None


def _arguments(call: ast.Call, forward: Function) -> Iterator[tuple[ast.expr, str]]:
    """The arguments of a call of the model, with the parameters of forward."""
    names = [a.arg for a in forward.args.args[1:]]
    yield from zip(call.args, names, strict=False)
    yield from ((k.value, k.arg) for k in call.keywords if k.arg in names and k.arg is not None)


def _selects(forward: Function, name: str) -> bool:
    """Whether a parameter is the index of a part of the model, or decides a branch."""
    for node in ast.walk(forward):
        part = node.slice if isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("self.") else None
        part = node.test if isinstance(node, (ast.If, ast.IfExp)) else part
        if part is not None and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(part)):
            return True
    return False


def _differs(module: Module, node: ast.expr) -> bool:
    values = each_rank(module, node, rank_contexts(module, module.index.function_of(node)), trusting=True)
    is_known = all(isinstance(v, (int, str)) for v in values)
    return is_known and any(v != values[0] for v in values) and value(module, node) != values[0]
