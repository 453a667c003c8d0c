"""SCRIPT038: the result of an asynchronous collective is read before wait()."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import after, before, code, delete, indent_of, point, replace, safe, waited
from ddpdoctor.rules.script.rank_branches import blocks
from ddpdoctor.rules.script.script_questions import argument
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

WAITS = ("wait", "synchronize", "is_completed", "result", "get_future")


@cause("SCRIPT038", "async-result-read-early", Severity.ERROR)
def async_result_read_early(script: Script) -> Iterator[Finding]:
    """The result of an asynchronous collective is read before wait.

    ## Why it matters
    The tensor still holds the old value, or a part of the new one. There is no error.

    ## Fix
    Call `work.wait()` before the tensor is read.

    ## Example
        # before
        dist.all_reduce(t, async_op=True)
        print(t.sum())

        # after
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        print(t.sum())
    """
    for module in modules(script):
        for call in _asynchronous(module):
            tensor = argument(call, 0, "tensor", "tensor_list", "output_tensor")
            if not isinstance(tensor, (ast.Name, ast.Attribute)):
                continue
            text = ast.unparse(tensor)
            read = _read_before_wait(module, call, text) or _read_in_later_loop(module, call, text)
            if read is not None:
                yield point(
                    module,
                    read,
                    f"{text} is read before {code(module, call.func)}() (line {call.lineno}) has finished",
                    "work.wait() before this line",
                    label="the value is old or incomplete",
                    edits=safe(_waited(module, call, read)),
                )


def _waited(module: Module, call: ast.Call, read: ast.AST) -> tuple[Edit, ...]:
    statement = module.index.statement(call)
    handles = _list_of(module, call)
    if handles is not None:
        return _all_waited(module, handles[0], handles[1], read)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return waited(
            module, statement.targets[0].id, after(module, statement, f"{statement.targets[0].id}.wait()"), statement
        )
    return (replace(module, call, f"{code(module, call, 400)}.wait()"),)


def _all_waited(module: Module, kept: str, end: ast.stmt, read: ast.AST) -> tuple[Edit, ...]:
    """Wait for all requests before the loop that reads, and delete the loop that waits too late."""
    block = next((b for b in blocks(module.index.parents[end]) if end in b), [])
    later = block[block.index(end) + 1 :] if block else []
    reading = next((s for s in later if any(n is read for n in ast.walk(s))), None)
    if reading is None:
        return ()
    text = f"for work in {kept}:\n{indent_of(module, reading)}    work.wait()"
    late = [s for s in later if isinstance(s, ast.For) and ast.unparse(s.iter) == kept and len(s.body) == 1]
    return (
        before(module, reading, text),
        *(delete(module, s) for s in late if ast.unparse(s.body[0]).endswith(".wait()")),
    )


def _asynchronous(module: Module) -> Iterator[ast.Call]:
    yield from module.calls("dist.irecv")
    for name in ("dist.all_reduce", "dist.broadcast", "dist.reduce", "dist.all_gather", "dist.all_gather_into_tensor"):
        for call in module.calls(name):
            flag = argument(call, None, "async_op")
            if isinstance(flag, ast.Constant) and flag.value is True:
                yield call


def _read_before_wait(module: Module, call: ast.Call, name: str) -> ast.AST | None:
    """The first use of the tensor after the call and before a wait, among the statements that follow."""
    statement = module.index.statement(call)
    parent = module.index.parents.get(call)
    handle = (
        statement.targets[0].id
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        else ""
    )
    kept = _list_of(module, call)
    if kept is not None and kept[1] is not statement:
        handle = kept[0]  # `works.append(call)`: what follows is in the same iteration
    elif not (isinstance(parent, ast.Expr) or (isinstance(parent, ast.Assign) and handle)):
        return None
    block = next((b for b in blocks(module.index.parents[statement]) if statement in b), [])
    for following in block[block.index(statement) + 1 :] if block else ():
        for node in inner(following):
            if _waits(node):
                return None
            if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
                return node
            is_one = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
            if is_one and ast.unparse(node) in (handle, name, name.partition(".")[0]):
                return None
            if isinstance(node, ast.Name) and handle and node.id == handle:
                return None
        uses = (n for n in inner(following) if isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) == name)
        read = next(uses, None)
        if isinstance(read, (ast.Name, ast.Attribute)):
            return read if _is_read(module, read, following) else None
    return None


def _list_of(module: Module, call: ast.Call) -> tuple[str, ast.stmt, ast.For | ast.comprehension] | None:
    """The list that holds the requests of a loop, where the loop ends, and the loop: `works.append(call)`, or `[call for …]`."""
    parent, statement = module.index.parents.get(call), module.index.statement(call)
    if isinstance(parent, ast.ListComp) and len(parent.generators) == 1:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is parent else None
        return (target.id, statement, parent.generators[0]) if isinstance(target, ast.Name) else None
    func = parent.func if isinstance(parent, ast.Call) else None
    loop = module.index.parents.get(statement)
    if not isinstance(func, ast.Attribute) or func.attr != "append" or not isinstance(loop, ast.For):
        return None
    return (func.value.id, loop, loop) if isinstance(func.value, ast.Name) else None


def _read_in_later_loop(module: Module, call: ast.Call, name: str) -> ast.AST | None:
    """The first use in a later loop over the same tensors, if the list of requests has not been used yet."""
    handles = _list_of(module, call)
    if handles is None:
        return None
    kept, end, loop = handles
    root, dot, rest = name.partition(".")
    if not isinstance(loop.target, ast.Name) or loop.target.id != root:
        return None
    block = next((b for b in blocks(module.index.parents[end]) if end in b), [])
    for following in block[block.index(end) + 1 :] if block else ():
        nodes = list(inner(following))
        if any(isinstance(n, ast.Name) and n.id == kept for n in nodes) or any(map(_waits, nodes)):
            return None
        if not isinstance(following, ast.For) or ast.unparse(following.iter) != ast.unparse(loop.iter):
            continue
        own = f"{ast.unparse(following.target)}{dot}{rest}"
        for node in (n for statement in following.body for n in inner(statement)):
            if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == own:
                changed = isinstance(module.index.parents[node], ast.AugAssign)
                read = changed or _is_read(module, node, module.index.statement(node))
                return node if read else None
    return None


def _waits(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in WAITS


def _is_read(module: Module, read: ast.Name | ast.Attribute, following: ast.stmt) -> bool:
    """Whether a use reads the value: not an argument of the next collective, and not only its shape."""
    parent = module.index.parents[read]
    is_called = (
        isinstance(following, ast.Expr) and isinstance(following.value, ast.Call) and following.value.func is parent
    )
    changes = isinstance(parent, ast.Attribute) and parent.attr.endswith("_") and parent.attr != "requires_grad_"
    if is_called and not changes:
        return False
    if isinstance(parent, ast.Attribute) and parent.attr in ("shape", "size", "device", "dtype", "numel"):
        return False
    call = next((p for p, _ in module.index.enclosing(read) if isinstance(p, ast.Call)), None)
    if (
        call is not None
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "add", "insert", "put")
    ):
        return False
    target = module.names.of(call.func) if call is not None else None
    return not (target or "").startswith("dist.")


@async_result_read_early.look
def used_early(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A tensor is used before the wait."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.EARLY_READ,
        lambda o, who: f"the tensor of an asynchronous {o.values['operation']}() is used before its wait() ({who})",
        label="the result may not be complete yet",
        expected="work.wait() first",
    )
