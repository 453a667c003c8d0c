"""SCRIPT043: only one rank has the result of a reduce."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, without_argument
from ddpdoctor.rules.script.rank_branches import blocks, in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, is_test
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner


@cause("SCRIPT043", "reduce-result-on-other-ranks", Severity.WARNING)
def reduce_result_on_other_ranks(script: Script) -> Iterator[Finding]:
    """The result of reduce is used on a rank that is not the destination.

    ## Why it matters
    Only the destination has the result. The other ranks have partial sums that look like results: with ones on four
    ranks, Gloo leaves 4, 3, 2 and 1.

    ## Fix
    Use all_reduce, or read the result on the destination only.

    ## Example
        # before
        dist.reduce(total, dst=0)
        print(rank, total.item() / world_size)

        # after
        dist.all_reduce(total)
        print(rank, total.item() / world_size)
    """
    for module in modules(script):
        for call in module.calls("dist.reduce"):
            tensor = argument(call, 0, "tensor")
            if (
                not isinstance(tensor, ast.Name)
                or argument(call, 3, "group") is not None
                or in_rank_branch(module, call)
                or is_test(module)
            ):
                continue
            read = _used_after(module, call, tensor.id)
            if read is not None and not in_rank_branch(module, read) and _is_shown(module, read):
                yield point(
                    module,
                    read,
                    f"{tensor.id} is used on all ranks, but reduce() (line {call.lineno}) fills only its destination",
                    "all_reduce, or `if rank == dst`",
                    label="a partial sum on the other ranks",
                    edits=_on_all(module, call),
                )


def _on_all(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Replace reduce with all_reduce, without its destination."""
    root = argument(call, 1, "dst")
    name = code(module, call.func).removesuffix("reduce")
    if root is None or not isinstance(call.func, ast.Attribute):
        return ()
    return (replace(module, call.func, f"{name}all_reduce"), *without_argument(module, call, root))


def _is_shown(module: Module, read: ast.AST) -> bool:
    """Whether a use shows the result: returned, printed, logged, computed on; not stored in a dict or list."""
    function = module.index.function_of(read)
    for parent, child in module.index.enclosing(read):
        if isinstance(parent, ast.Return) and function is not None and "reduce" in function.name:
            return False  # a reduce function of the project: its callers know which rank has the result
        if isinstance(parent, ast.Assign) and _is_for_some(module, parent):
            return False
        if isinstance(parent, ast.Call) and child is not parent.func and _acts_on_some(module, parent):
            return False
        if isinstance(parent, (ast.Dict, ast.List, ast.Tuple)):
            return False
        if isinstance(parent, ast.Assign) and not isinstance(parent.targets[0], ast.Name):
            return False
        if isinstance(parent, ast.stmt) and child is not parent:
            return True
    return False


def _is_for_some(module: Module, statement: ast.Assign) -> bool:
    """Whether the computed value goes into a name that only branches of some ranks read."""
    name = statement.targets[0]
    scope = module.index.scope(name)
    uses = [
        n
        for n, around in module.index.scope_by_node.items()
        if isinstance(n, ast.Name) and around is scope and isinstance(name, ast.Name) and n.id == name.id
    ]
    reads = [n for n in uses if isinstance(n.ctx, ast.Load) and n.lineno > statement.lineno]
    return bool(reads) and all(in_rank_branch(module, n) for n in reads)


def _acts_on_some(module: Module, call: ast.Call) -> bool:
    """Whether a function of the project uses its arguments in branches of some ranks only, as `print0` does."""
    target = module.target(call)
    if target is None:
        return False
    scope = target.module.index.scopes[target.function]
    given = {a.arg for a in ast.walk(target.function.args) if isinstance(a, ast.arg)}
    names = (n for n, s in target.module.index.scope_by_node.items() if s is scope and isinstance(n, ast.Name))
    reads = [n for n in names if n.id in given and isinstance(n.ctx, ast.Load)]
    return bool(reads) and all(in_rank_branch(target.module, n) for n in reads)


def _is_shape(module: Module, node: ast.Name) -> bool:
    """Whether a use is `tensor.device` or `tensor.shape`, which does not read the value."""
    parent = module.index.parents.get(node)
    return isinstance(parent, ast.Attribute) and parent.attr in ("device", "dtype", "shape", "is_cuda")


def _knows_where(module: Module, node: ast.AST) -> bool:
    """Whether the script distinguishes the ranks where it changes the result, or is in a reduce function of the project."""
    function = module.index.function_of(node)
    return in_rank_branch(module, node) or (function is not None and "reduce" in function.name)


def _used_after(module: Module, call: ast.Call, name: str) -> ast.AST | None:
    statement = module.index.statement(call)
    block = next((b for b in blocks(module.index.parents[statement]) if statement in b), [])
    for following in block[block.index(statement) + 1 :] if block else ():
        read_first = [following.value] if isinstance(following, ast.Assign) else []
        for node in (n for part in (*read_first, following) for n in inner(part)):
            if isinstance(node, ast.Name) and node.id == name and not _is_shape(module, node):
                if isinstance(module.index.parents.get(node), ast.AugAssign) and not _knows_where(module, node):
                    continue  # `total /= n`: on the other ranks it is still a partial sum
                if not isinstance(node.ctx, ast.Load):
                    return None
                inside = next((p for p, _ in module.index.enclosing(node) if isinstance(p, ast.Call)), None)
                collective = inside is not None and (module.names.of(inside.func) or "").startswith("dist.")
                return None if collective else node
    return None
