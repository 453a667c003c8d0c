"""SCRIPT036 and SCRIPT037: the buffers of send and recv."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import (
    before,
    code,
    point,
    replace,
    waited,
)
from ddpdoctor.rules.script.script_questions import argument, has_more, last_value
from ddpdoctor.scripts.interpreter.conditions import exclusive
from ddpdoctor.scripts.simulation.p2p_matching import p2p_outcomes
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

IN_PLACE = ("zero_", "fill_", "copy_", "add_", "sub_", "mul_", "div_", "normal_", "uniform_", "random_")


@cause("SCRIPT036", "recv-buffer-mismatch", Severity.ERROR)
def recv_buffer_mismatch(script: Script) -> Iterator[Finding]:
    """The receive buffer differs from what is sent.

    ## Why it matters
    A smaller buffer aborts the receiver: `op.preamble.length <= op.nbytes. 16 vs 8`. Another dtype of the same size
    is misread without an error: 1.0 arrives as 1065353216.

    ## Fix
    Receive into a tensor with the shape and dtype that are sent.

    ## Example
        # before
        if rank == 0:
            dist.send(torch.ones(4), dst=1)
        else:
            dist.recv(torch.zeros(2), src=0)
            # op.preamble.length <= op.nbytes. 16 vs 8

        # after
        if rank == 0:
            dist.send(torch.ones(4), dst=1)
        else:
            dist.recv(torch.zeros(4), src=0)
    """
    for module in modules(script):
        reported: set[ast.Call] = set()
        for world in p2p_outcomes(module):
            for played in world:
                for sent, received in played.pairs:
                    problem = _mismatch(module, sent.event, received.event)
                    if problem and received.event.call not in reported:
                        reported.add(received.event.call)
                        yield point(
                            module,
                            received.event.call,
                            problem[0],
                            "the shape and dtype that are sent",
                            label=problem[1],
                            edits=_as_sent(module, sent.event, received.event),
                        )


def _as_sent(module: Module, sent: Event, received: Event) -> tuple[Edit, ...]:
    """Create the buffer with the size and dtype that are sent, if it is created for this recv."""
    given = received.argument(0, "tensor")
    made = last_value(module, given) if given is not None else None
    described = _described(module, sent)
    if not isinstance(made, ast.Call) or described is None:
        return ()
    if (module.names.of(made.func) or "") not in ("torch.zeros", "torch.empty", "torch.ones"):
        return ()
    count, kind = described
    maker = code(module, made.func)
    dtype = kind and f", dtype={maker.rpartition('.')[0] or 'torch'}.{kind.removeprefix('torch.')}"
    device = next((f", {code(module, k)}" for k in made.keywords if k.arg == "device"), "")
    is_default = kind == "torch.float32" and not any(k.arg == "dtype" for k in made.keywords)
    return (replace(module, made, f"{maker}({count}{'' if is_default else dtype}{device})"),)


def _mismatch(module: Module, sent: Event, received: Event) -> tuple[str, str] | None:
    """The headline and the label of a buffer that does not fit; None if it fits or is unknown."""
    one, two = _described(module, sent), _described(module, received)
    if one is None or two is None:
        return None
    line = sent.call.lineno
    if two[0] < one[0]:
        return f"recv buffer has {two[0]} elements, but line {line} sends {one[0]}", "the receiver aborts"
    if one[1] and two[1] and one[1] != two[1]:
        return f"recv buffer is {two[1]}, but line {line} sends {one[1]}", "the bytes are misread, without an error"
    return None


def _described(module: Module, event: Event) -> tuple[int, str] | None:
    """Elements and dtype of a message's tensor, if the source shows them; "" for an unknown dtype."""
    given = event.argument(0, "tensor")
    made = last_value(module, given) if given is not None else None
    if not isinstance(made, ast.Call) or has_more(made):
        return None
    name = (module.names.of(made.func) or "").removeprefix("torch.")
    dtype = next((module.names.of(k.value) for k in made.keywords if k.arg == "dtype"), None)
    if name in ("zeros", "ones", "empty", "rand", "randn"):
        count = _product([event.read(a) for a in made.args])
        return None if count is None else (count, dtype or "torch.float32")
    if name == "full" and made.args:
        count = _product([event.read(made.args[0])])
        return None if count is None else (count, dtype or "")
    if name == "tensor" and made.args:
        return _literal(made.args[0], dtype)
    if name == "arange" and len(made.args) == 1:
        end = event.read(made.args[0])
        kind = "torch.float32" if isinstance(end, float) else "torch.int64"
        count = _product([int(end) if isinstance(end, float) and end.is_integer() else end])
        return None if count is None else (count, dtype or kind)
    return None


def _product(sizes: list[object]) -> int | None:
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = list(sizes[0])
    total = 1
    for size in sizes:
        if type(size) is not int:
            return None
        total *= size
    return total if sizes else None


def _literal(node: ast.expr, dtype: str | None) -> tuple[int, str] | None:
    """Elements and dtype of a flat literal: torch.tensor([1.0, 2.0])."""
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    values = [i.value for i in items if isinstance(i, ast.Constant)]
    if len(values) != len(items) or not values:
        return None
    kind = "torch.float32" if any(isinstance(v, float) for v in values) else "torch.int64"
    return len(items), dtype or kind


@cause("SCRIPT037", "isend-not-waited", Severity.ERROR)
def isend_not_waited(script: Script) -> Iterator[Finding]:
    """An isend is never waited for, or its buffer is changed before wait.

    ## Why it matters
    isend returns while the data is still in the buffer. If the sender ends, the receiver fails with `Connection
    closed by peer`; if the sender writes to the buffer, the receiver gets the new content, often zeros.

    ## Fix
    Keep the request and call `wait()` before the buffer is used again.

    ## Example
        # before
        dist.isend(x, dst=1)
        x.zero_()
        # rank 1 may receive zeros

        # after
        request = dist.isend(x, dst=1)
        request.wait()
        x.zero_()
    """
    for module in modules(script):
        for call in module.calls("dist.isend"):
            parent = module.index.parents.get(call)
            if isinstance(parent, ast.Expr):
                yield point(
                    module,
                    call,
                    "isend() without wait(): its request is discarded",
                    "request.wait()",
                    label="the message may be lost",
                    edits=(replace(module, call, f"{code(module, call, 400)}.wait()"),),
                )
            elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
                yield from _kept(module, call, parent)


def _kept(module: Module, call: ast.Call, statement: ast.Assign) -> Iterator[Finding]:
    name = statement.targets[0].id if isinstance(statement.targets[0], ast.Name) else ""
    root: ast.AST = module.index.function_of(call) or module.tree
    loads = [n for n in ast.walk(root) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    uses = [n for n in loads if not exclusive(module, call, n)]
    if not uses:
        yield point(
            module,
            call,
            f"isend() without wait(): {name} is never waited for",
            f"{name}.wait()",
            label="the message may be lost",
            fix=f"Call `{name}.wait()` before the process ends.",
            edits=(replace(module, call, f"{code(module, call, 400)}.wait()"),),
        )
        return
    changed = _changed(module, call, statement, name)
    if changed is not None:
        given = argument(call, 0, "tensor")
        tensor = code(module, given) if given is not None else "the buffer"
        yield point(
            module,
            changed,
            f"{tensor} is changed before {name}.wait() (isend in line {call.lineno})",
            f"{name}.wait() before",
            label="the receiver gets the new content",
            fix=f"Call `{name}.wait()` before this line.",
            edits=waited(module, name, before(module, module.index.statement(changed), f"{name}.wait()"), statement),
        )


def _changed(module: Module, call: ast.Call, statement: ast.Assign, request: str) -> ast.AST | None:
    """The first statement after an isend that writes to its tensor, unless a wait comes first."""
    tensor = argument(call, 0, "tensor")
    parent = module.index.parents[statement]
    block = next(
        (b for b in (getattr(parent, n, None) for n in ("body", "orelse")) if isinstance(b, list) and statement in b),
        [],
    )
    if not isinstance(tensor, ast.Name):
        return None
    for following in block[block.index(statement) + 1 :] if block else ():
        for node in inner(following):
            if isinstance(node, ast.Name) and node.id == request:
                return None
            func = node.func if isinstance(node, ast.Call) else None
            if isinstance(func, ast.Attribute) and func.attr in IN_PLACE and ast.unparse(func.value) == tensor.id:
                return node
            target = (
                node.target
                if isinstance(node, ast.AugAssign)
                else node.targets[0]
                if isinstance(node, ast.Assign)
                else None
            )
            written = (
                target.value
                if isinstance(target, ast.Subscript)
                else target
                if isinstance(node, ast.AugAssign)
                else None
            )
            if isinstance(written, ast.Name) and written.id == tensor.id:
                return node
    return None


@recv_buffer_mismatch.look
def buffer_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A buffer of another size or dtype than what is sent."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.BUFFER, label="not the size or dtype that is sent")


@isend_not_waited.look
def not_waited_for(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A send that nobody waited for."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NOT_WAITED,
        lambda o, who: f"nothing waits for {o.values['operation']}() ({who})",
        label="no call waits for this work",
        expected="work.wait()",
    )
