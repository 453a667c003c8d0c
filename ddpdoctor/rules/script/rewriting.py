"""Corrections that move statements: out of a branch, before an early exit, into one order.

Each returns the edits, or none where the result might not be what the author means: a name that only the branch defines,
a multi-line string that would be re-indented, an exit in between.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from ddpdoctor.findings import Edit
from ddpdoctor.rules.script.pointing import before, code, dist_of, imported, indent_of, is_elif, replace
from ddpdoctor.rules.script.rank_branches import blocks, depends_on_rank
from ddpdoctor.rules.script.script_questions import argument, backends
from ddpdoctor.rules.script.whole_lines import deleted_lines, inserted_lines, lines_of, reindented, replaced_lines
from ddpdoctor.scripts.simulation.divergence import Divergence
from ddpdoctor.scripts.simulation.joint_paths import COMMUNICATION
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

__all__ = ["agreed", "called_by_all", "in_one_order", "reached_by_all"]

_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.YieldFrom)
_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def called_by_all(module: Module, disagreement: Divergence) -> tuple[Edit, ...]:
    """Move the call out of the branch that only some ranks take."""
    branch = disagreement.test.node
    if isinstance(branch, ast.expr):
        return _unconditional(module, disagreement.at, branch)
    if not isinstance(branch, ast.If) or is_elif(module, branch):
        return ()
    statement = _directly_in(module, disagreement.at, branch)
    shared = _shared_part(module, branch.test)
    if isinstance(disagreement.at, ast.Call) and _is_nested(module, disagreement.at):
        return _made_before(module, disagreement.at, branch, shared)
    body = next((b for b in (branch.body, branch.orelse) if statement in b), None)
    if statement is None or body is None or (body is branch.orelse and (shared or _is_elif_arm(module, branch))):
        return ()
    if shared is None:
        return ()
    together = [s for s in body if s is statement or (_communicates(module, s) and _is_call(s))]
    if together == branch.body and not branch.orelse:
        return (replace(module, branch.test, shared),) if shared else _as_one(module, branch)
    own = [statement]
    others = [s for s in body if s is not statement]
    if not others or _stored(others) & _loaded(own):
        return ()
    at = body.index(statement)
    indent = indent_of(module, branch)
    text = reindented(lines_of(module, own), f"{indent}    " if shared else indent)
    text = [f"{indent}if {shared}:\n", *text] if shared and text else text
    if not text:
        return ()
    if all(s in together for s in body[:at]):
        return (deleted_lines(module, own), inserted_lines(module, branch.lineno, text))
    if any(isinstance(n, _LEAVES) for s in others for n in inner(s)):
        return ()
    if all(s in together for s in body[at:]):
        return (deleted_lines(module, own), inserted_lines(module, (branch.end_lineno or 0) + 1, text))
    if branch.orelse or _stored(others) & _loaded([branch.test]):
        return ()
    again = f"{indent}if {code(module, branch.test, 400)}:\n"
    return replaced_lines(module, own, [*text, again])


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(statement.value, ast.Call)


def _is_nested(module: Module, call: ast.Call) -> bool:
    """Whether the call is only a part of its statement, and the rest has to stay in the branch."""
    statement = module.index.statement(call)
    return not isinstance(statement, (ast.Expr, ast.Assign)) or statement.value is not call


def _made_before(module: Module, call: ast.Call, branch: ast.If, shared: str | None) -> tuple[Edit, ...]:
    """Make the call before the branch, and use its result in the branch under a name."""
    name = "state" if isinstance(call.func, ast.Attribute) and "state" in call.func.attr else "gathered"
    statement = module.index.statement(call)
    scope = module.index.scope(call)
    is_simple = isinstance(statement, (ast.Expr, ast.Assign)) and module.index.parents[statement] is branch
    if shared != "" or not is_simple or name in scope.names or _stored(branch.body) & _loaded([call]):
        return ()
    return (before(module, branch, f"{name} = {code(module, call, 4000)}"), replace(module, call, name))


def _shared_part(module: Module, test: ast.expr) -> str | None:
    """The part of a condition that is equal on all ranks: "" if there is none, None if it cannot be separated."""
    if not isinstance(test, ast.BoolOp):
        return ""
    shared = [value for value in test.values if not depends_on_rank(module, value)]
    if not isinstance(test.op, ast.And) or len(shared) == len(test.values):
        return None
    sources = [f"({code(module, e, 400)})" if isinstance(e, ast.BoolOp) else code(module, e, 400) for e in shared]
    return " and ".join(sources)


def _unconditional(module: Module, call: ast.AST, test: ast.expr) -> tuple[Edit, ...]:
    """Replace the statements `test and call()` and `call() if test else None` with the call."""
    choice = module.index.parents.get(call)
    alone = isinstance(module.index.parents.get(choice), ast.Expr) if choice is not None else False
    if isinstance(choice, ast.BoolOp) and choice.values == [test, call]:
        return (replace(module, choice, code(module, call, 4000)),) if alone else ()
    if isinstance(choice, ast.IfExp) and isinstance(choice.orelse, ast.Constant) and choice.body is call:
        return (replace(module, choice, code(module, call, 4000)),) if alone else ()
    return ()


def _directly_in(module: Module, call: ast.AST, branch: ast.If) -> ast.stmt | None:
    """The statement of a branch that contains a call, possibly inside nested `if`s that hold nothing else."""
    statement = module.index.statement(call)
    while (parent := module.index.parents.get(statement)) is not branch:
        if not isinstance(parent, ast.If) or parent.body != [statement] or parent.orelse:
            return None
        statement = parent
    return statement


def reached_by_all(module: Module, disagreement: Divergence) -> tuple[Edit, ...]:
    """Move an early exit after the collectives of the other ranks; their own work goes under the opposite condition."""
    guard = disagreement.test.node
    if not isinstance(guard, ast.If) or guard.orelse or is_elif(module, guard):
        return ()
    if module.index.statement(disagreement.at) is not guard.body[-1] or not disagreement.test.taken:
        return ()
    owner = module.index.parents[guard]
    block = next((b for b in blocks(owner) if guard in b), [])
    rest = block[block.index(guard) + 1 :] if block else []
    shared = [s for s in rest if _communicates(module, s) or _ends_group(module, s)]
    first = [s for s in shared if disagreement.event.chain[disagreement.test.depth] in inner(s)]
    if not first or any(not isinstance(s, (ast.Expr, ast.Assign)) for s in shared):
        return ()
    rest, after = rest[: rest.index(shared[-1]) + 1], rest[rest.index(shared[-1]) + 1 :]
    own = [s for s in rest if s not in shared]
    if any(isinstance(n, _LEAVES) for s in own for n in inner(s)) or _stored(own) & _loaded([*shared, guard.test]):
        return ()
    indent = indent_of(module, guard)
    new: list[str] = []
    for statement in rest:
        lines = lines_of(module, [statement])
        if not lines or not lines_of(module, [guard]):
            return ()
        if statement in own:
            is_next = rest.index(statement) > 0 and rest[rest.index(statement) - 1] in own
            new += [] if is_next else [f"{indent}if {_opposite(module, guard.test)}:\n"]
            lines = reindented(lines, f"{indent}    ")
        new += lines
    if after or len(guard.body) > 1 or not _ends_anyway(owner, disagreement.at):
        new += lines_of(module, [guard])
    return replaced_lines(module, [guard, *rest], new)


def _ends_anyway(owner: ast.AST, leaving: ast.AST) -> bool:
    """Whether the exit is redundant at the end of this block."""
    if isinstance(leaving, ast.Return):
        return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) and leaving.value is None
    if isinstance(leaving, ast.Continue):
        return isinstance(owner, (ast.For, ast.AsyncFor, ast.While))
    return isinstance(owner, ast.Module)


def agreed(module: Module, disagreement: Divergence) -> tuple[Edit, ...]:
    """Reduce the condition over all ranks, so that all of them reach the collective or none does."""
    branch = disagreement.test.node
    scope = module.index.scope(disagreement.at)
    if not isinstance(branch, ast.If) or is_elif(module, branch):
        return ()
    leaves = disagreement.kind == "exit"
    name = "stop" if leaves else "agreed"
    device = _device(module, branch.test)
    if device is None or name in scope.names or any(isinstance(n, ast.NamedExpr) for n in ast.walk(branch.test)):
        return ()
    operation = "MAX" if disagreement.test.taken is leaves else "MIN"
    dist, indent = dist_of(module), indent_of(module, branch)
    test = code(module, branch.test, 400)
    truth = f"float({test})" if isinstance(branch.test, (ast.Call, ast.Compare)) else f"float(bool({test}))"
    lines = f"{name} = torch.tensor({truth}{device})\n{indent}{dist}.all_reduce({name}, op={dist}.ReduceOp.{operation})"
    torch = imported(module, "torch", "import torch")
    return (*torch, before(module, branch, lines), replace(module, branch.test, f"{name}.item() > 0"))


def _device(module: Module, test: ast.expr) -> str | None:
    """The device argument of a tensor for all_reduce; None where the source does not show it."""
    for node in ast.walk(test):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(func, ast.Attribute) and func.attr == "item" and isinstance(func.value, ast.Name):
            return f", device={func.value.id}.device"
        if module.names.of(func) in ("torch.isnan", "torch.isfinite", "torch.isinf") if func is not None else False:
            given = node.args[0] if isinstance(node, ast.Call) and node.args else None
            return f", device={given.id}.device" if isinstance(given, ast.Name) else None
    model = next((w for w in sorted(module.wrapped) if w.partition(".")[0] in _seen_from(module, test)), None)
    if model is not None:
        return f", device=next({model}.parameters()).device"
    return "" if backends(module) == {"gloo"} else None


def _seen_from(module: Module, node: ast.AST) -> set[str]:
    function = module.index.function_of(node)
    scope = module.index.scopes[function] if function is not None else module.index.scopes[module.tree]
    return set(scope.names)


def in_one_order(module: Module, disagreement: Divergence) -> tuple[Edit, ...]:
    """Put the same collectives of two arms into the order of the first arm, or merge the arms."""
    branch = disagreement.test.node
    if not isinstance(branch, ast.If) or is_elif(module, branch) or _is_elif_arm(module, branch):
        return ()
    arms = [[s for s in arm if _communicates(module, s)] for arm in (branch.body, branch.orelse)]
    if any(not isinstance(s, ast.Expr) for arm in arms for s in arm) or not arms[0]:
        return ()
    texts = [Counter(code(module, s, 4000) for s in arm) for arm in arms]
    for arm, together in zip((branch.body, branch.orelse), arms, strict=True):
        if texts[0] != texts[1] or arm[arm.index(together[0]) : arm.index(together[-1]) + 1] != together:
            return ()
    if arms == [branch.body, branch.orelse]:
        return _as_one(module, branch)
    return tuple(replace(module, old, code(module, new, 4000)) for new, old in zip(*arms, strict=True))


def _as_one(module: Module, branch: ast.If) -> tuple[Edit, ...]:
    """Replace a branch with its first arm."""
    lines = reindented(lines_of(module, branch.body), indent_of(module, branch))
    return replaced_lines(module, [branch], lines) if lines and lines_of(module, [branch]) else ()


def _is_elif_arm(module: Module, branch: ast.If) -> bool:
    arm = branch.orelse
    return len(arm) == 1 and isinstance(arm[0], ast.If) and is_elif(module, arm[0])


def _communicates(module: Module, statement: ast.stmt) -> bool:
    calls = (n for n in inner(statement) if isinstance(n, ast.Call) and COMMUNICATION.call(module, n))
    return any(argument(c, GROUP_POSITION.get(module.names.of(c.func) or ""), "group") is None for c in calls)


def _ends_group(module: Module, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and module.names.of(call.func) == "dist.destroy_process_group"


def _stored(statements: Iterable[ast.AST]) -> set[str]:
    """The names that statements assign."""
    names = set()
    for node in (n for s in statements for n in ast.walk(s)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for s in nodes for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _opposite(module: Module, test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return code(module, test.operand, 400)
    sign = _OPPOSITE.get(type(test.ops[0])) if isinstance(test, ast.Compare) and len(test.ops) == 1 else None
    if isinstance(test, ast.Compare) and sign is not None:
        return f"{code(module, test.left, 400)} {sign} {code(module, test.comparators[0], 400)}"
    text = code(module, test, 400)
    return f"not {text}" if isinstance(test, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"
