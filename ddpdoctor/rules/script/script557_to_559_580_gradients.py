"""SCRIPT557 to SCRIPT559 and SCRIPT580: gradients that a collective loses, scales or does not average."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.late_pattern import pattern
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import after, code, dist_of, point
from ddpdoctor.rules.script.rank_branches import blocks
from ddpdoctor.rules.script.script_questions import argument, each_rank, is_quiet, is_test, names_in
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function, inner

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_NOT_TRAINED = pattern(
    r"(?i)label|target|idx|index|indices|mask|\bids?\b|_ids?$|size|length|count|image|input|data|^[ty]$"
)
"""Names of tensors that have no gradient anyway."""
_DRIVERS = pattern(r"(?i)accel|engine|fabric|^self$|deepspeed")
"""Objects whose `backward` takes the loss, unlike that of a tensor."""
_LOSSES = pattern(r"(?i)loss|crit|contrast|nce|entropy|similarity")
_PRODUCTS = ("torch.mm", "torch.matmul", "torch.einsum", "torch.cdist", "nn.functional.cosine_similarity")
_SIZES = ("world", "size", "num", "count", "replicas", "nprocs", "ranks", "gpus")
_LOADS = ("torch.load", "dist.broadcast", "dist.broadcast_object_list", "dist._broadcast_coalesced")


@cause("SCRIPT557", "gathered-tensors-without-gradient", Severity.ERROR)
@with_histories(MistakeKind.GATHERED_WITHOUT_GRADIENT)
def gathered_tensors_without_gradient(script: Script) -> Iterator[Finding]:
    """A loss is computed from the outputs of all_gather, which have no gradient.

    ## Why it matters
    all_gather copies values without a gradient, including the rank's own part. The loss does not train the model:
    `element 0 of tensors does not require grad`, or the parameters silently stay as they are.

    ## Fix
    Put the rank's own tensor back, `parts[rank] = x`, or gather with `torch.distributed.nn.functional.all_gather(x)`.

    ## Example
        # before
        dist.all_gather(parts, z)
        loss = contrast(torch.cat(parts))
        loss.backward()
        # RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn

        # after
        dist.all_gather(parts, z)
        parts[dist.get_rank()] = z
        loss = contrast(torch.cat(parts))
        loss.backward()

    ## Source
    PyTorch documentation of torch.distributed.all_gather; torch.distributed.nn.functional.
    """
    for module in modules(script):
        if is_test(module):
            continue
        for call in module.calls("dist.all_gather"):
            parts, own = argument(call, 0, "tensor_list"), argument(call, 1, "tensor")
            if not isinstance(parts, ast.Name) or not isinstance(own, ast.Name):
                continue
            function = module.index.function_of(call)
            if any(is_quiet(p) for p, _ in module.index.enclosing(call)) or _is_put_back(module, parts):
                continue
            if _NOT_TRAINED.search(own.id) or _NOT_TRAINED.search(parts.id):
                continue
            if _trains_on(module, function, parts.id, call.lineno):
                yield point(
                    module,
                    call,
                    f"the loss is computed from {parts.id}, which all_gather fills without gradients",
                    f"{parts.id}[rank] = {own.id}",
                    label="no gradient flows through all_gather",
                    fix=f"Write `{parts.id}[{dist_of(module)}.get_rank()] = {own.id}` after it.",
                    edits=_put_back(module, call, parts, own),
                )


def _put_back(module: Module, call: ast.Call, parts: ast.Name, own: ast.Name) -> tuple[Edit, ...]:
    statement = module.index.statement(call)
    text = f"{parts.id}[{dist_of(module)}.get_rank()] = {own.id}"
    return (after(module, statement, text),) if isinstance(statement, ast.Expr) else ()


def _is_put_back(module: Module, parts: ast.Name) -> bool:
    """Whether something is stored in the list, or the list is not used as it is."""
    stores = (s.value for s in module.index.subscripts if isinstance(s.ctx, ast.Store))
    changed = [f.value for c in module.method_calls.get("append", ()) if isinstance(f := c.func, ast.Attribute)]
    return any(isinstance(n, ast.Name) and n.id == parts.id for n in (*stores, *changed))


def _trains_on(module: Module, function: Function | None, name: str, line: int) -> bool:
    """Whether a name's value flows into the loss of a backward pass: in this function, or through what it returns."""
    nodes = list(inner(function) if function is not None else inner(module.tree))
    lists = [argument(c, 0, "tensor_list") for c in module.calls("dist.all_gather")]
    gathered = {each.id for each in lists if isinstance(each, ast.Name) and module.index.function_of(each) is function}
    own = {name}
    for node in sorted((n for n in nodes if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        if node.lineno >= line and _carries(module, node.value, gathered):
            targets = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            gathered |= targets
            own |= targets if own & names_in(node.value) else set()
    if _goes_back(module, function, own - {name}):
        return True
    returned = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
    if function is None or not any(_carries(module, r, gathered) and own & names_in(r) for r in returned):
        return False
    callers = module.callers.get(function, [])
    return bool(callers) and any(_is_loss(module, call) for call in callers)


def _carries(module: Module, node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is computed from these values alone: not from their shape, not with a model, not with others."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and each.attr in ("shape", "data", "requires_grad"):
            return False
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult) and not _both(each.left, each.right, names):
            return False
        if isinstance(each, ast.Call) and not _is_plain(module, each, names):
            return False
    return bool(names & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)})


def _both(left: ast.expr, right: ast.expr, names: set[str]) -> bool:
    return all(names & names_in(side) for side in (left, right))


def _is_plain(module: Module, call: ast.Call, names: set[str]) -> bool:
    """Whether a call is a function of torch, a loss, or a method of one of the tensors, and keeps what it gets."""
    name = module.names.of(call.func) or ""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if last in ("detach", "item", "size", "tolist", "numpy", "requires_grad_", "insert", "argmax", "no_grad"):
        return False
    if name in _PRODUCTS or last in ("mm", "matmul"):
        given = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) and not name else [])]
        return all(names & names_in(g) for g in given if not isinstance(g, ast.Constant))
    if name.startswith(("torch.", "nn.functional.", "len", "range", "list", "sum")) or _LOSSES.search(last):
        return True
    return isinstance(call.func, ast.Attribute) and not name and bool(names & names_in(call.func.value))


def _goes_back(module: Module, function: Function | None, names: set[str]) -> bool:
    for call in module.method_calls.get("backward", ()):
        base = call.func.value if isinstance(call.func, ast.Attribute) else None
        takes_loss = base is not None and not isinstance(base, ast.Call) and bool(_DRIVERS.search(ast.unparse(base)))
        given = [*call.args[:1]] if takes_loss else [base] if base is not None else []
        if module.index.function_of(call) is function and any(names & names_in(g) for g in given):
            return True
    return False


def _is_loss(module: Module, call: ast.Call) -> bool:
    """Whether the result of a call is what a backward pass starts from."""
    statement = module.index.statement(call)
    if any(isinstance(p, ast.Attribute) and p.attr == "backward" for p, _ in module.index.enclosing(call)):
        return True
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    return _goes_back(module, module.index.function_of(call), {statement.targets[0].id})


@cause("SCRIPT558", "loss-reduced-before-backward", Severity.WARNING)
@with_histories(MistakeKind.LOSS_REDUCED)
def loss_reduced_before_backward(script: Script) -> Iterator[Finding]:
    """The loss is all-reduced in place before its backward pass.

    ## Why it matters
    Autograd does not see the collective: the gradients belong to the local loss, scaled by what follows, such as a
    division by the world size. DDP averages them once more, and newer versions warn `an autograd kernel was not
    registered`.

    ## Fix
    Call backward first, then reduce `loss.detach().clone()` for the log.

    ## Example
        # before
        dist.all_reduce(loss)
        loss = loss / dist.get_world_size()
        loss.backward()

        # after
        loss.backward()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
    """
    for module in modules(script):
        if not module.wraps or is_test(module):
            continue
        for call in module.calls("dist.all_reduce", "dist.reduce"):
            tensor = argument(call, 0, "tensor")
            statement = module.index.statement(call)
            if not isinstance(tensor, ast.Name) or any(is_quiet(p) for p, _ in module.index.enclosing(call)):
                continue
            later = _backward_after(module, statement, tensor.id)
            if later is not None and argument(call, 2, "group") is None:
                yield point(
                    module,
                    call,
                    f"{tensor.id} is reduced in place before its backward pass (line {later.lineno})",
                    f"{tensor.id}.detach().clone() after the backward pass",
                    label="autograd does not see the collective",
                )


def _backward_after(module: Module, statement: ast.stmt, name: str) -> ast.Call | None:
    """The backward pass from a name later in the same block, if the name does not get another value in between."""
    parent = module.index.parents.get(statement)
    block = next((b for b in blocks(parent) if statement in b), []) if parent is not None else []
    for later in block[block.index(statement) + 1 :] if block else ():
        stored = [t.id for t in later.targets if isinstance(t, ast.Name)] if isinstance(later, ast.Assign) else []
        if isinstance(later, ast.Assign) and name in stored and name not in names_in(later.value):
            return None
        for node in inner(later):
            is_pass = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward"
            if isinstance(node, ast.Call) and is_pass and any(name in names_in(n) for n in (node.func, *node.args)):
                return node
    return None


def _reduced_gradients(module: Module) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """`dist.all_reduce(p.grad)` in a loop over parameters, of the default group."""
    for call in module.calls("dist.all_reduce"):
        tensor = argument(call, 0, "tensor")
        if isinstance(tensor, ast.Attribute) and tensor.attr == "data":
            tensor = tensor.value
        loops = [p for p, _ in module.index.enclosing(call) if isinstance(p, ast.For)]
        is_of_parameters = any("parameters()" in ast.unparse(loop.iter) for loop in loops)
        is_gradient = isinstance(tensor, ast.Attribute) and tensor.attr == "grad" and is_of_parameters
        if isinstance(tensor, ast.Attribute) and is_gradient and argument(call, 2, "group") is None:
            yield call, tensor


@cause("SCRIPT559", "gradients-summed-not-averaged", Severity.WARNING)
def gradients_summed_not_averaged(script: Script) -> Iterator[Finding]:
    """Gradients are summed over the ranks and never divided.

    ## Why it matters
    The step is world_size times as large as that of one process: the same learning rate diverges on more GPUs.

    ## Fix
    Divide after the all_reduce: `p.grad /= dist.get_world_size()`.

    With NCCL, `op=dist.ReduceOp.AVG` does both.

    ## Example
        # before
        for p in model.parameters():
            dist.all_reduce(p.grad)

        # after
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    """
    for module in modules(script):
        if is_test(module) or _divides(module):
            continue
        for call, gradient in _reduced_gradients(module):
            operation = argument(call, 1, "op")
            if operation is not None and module.names.of(operation) != "dist.ReduceOp.SUM":
                continue
            statement = module.index.statement(call)
            divided = f"{code(module, gradient)} /= {dist_of(module)}.get_world_size()"
            yield point(
                module,
                call,
                f"{code(module, gradient)} is summed over the ranks and never divided by their number",
                divided,
                label="divide by the world size",
                fix=f"Write `{divided}` after it.",
                edits=(after(module, statement, divided),) if isinstance(statement, ast.Expr) else (),
            )


def _divides(module: Module) -> bool:
    """Whether the file divides anything by a number of ranks, or scales the learning rate or the loss by it."""
    for node in module.index.parents:
        divisor: ast.AST | None = None
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.Mult, ast.FloorDiv)):
            divisor = node.right if isinstance(node, ast.BinOp) else node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("div_", "mul_", "div", "mul"):
            divisor = node
        if divisor is not None and any(w in name.lower() for name in names_in(divisor) for w in _SIZES):
            return True
    return False


@cause("SCRIPT580", "parameters-never-broadcast", Severity.ERROR)
@with_histories(MistakeKind.UNLIKE_START)
def parameters_never_broadcast(script: Script) -> Iterator[Finding]:
    """Gradients are averaged by hand, but the models start with different parameters.

    ## Why it matters
    Each rank applies the same update to different weights. The models never become equal, and no error says so.

    ## Fix
    Broadcast the parameters of rank 0 after the model is built: `dist.broadcast(p.data, src=0)` for each.

    The same seed on all ranks before the model is built works as well.

    ## Example
        # before
        torch.manual_seed(rank)
        model = Net()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size

        # after
        torch.manual_seed(rank)
        model = Net()
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size
    """
    for module in modules(script):
        has_wrapper = module.wraps or module.frameworks or module.calls(*_LOADS) or "load_state_dict" in module.text
        if has_wrapper or is_test(module):
            continue
        seeds = [c for c in module.calls("torch.manual_seed") if c.args]
        if not any(_differs(module, c.args[0]) for c in seeds) or len(seeds) > 1:
            continue
        built = _model_after(module, seeds[0])
        reduced = next(_reduced_gradients(module), None)
        if built is not None and reduced is not None:
            yield point(
                module,
                built,
                f"the model is built with a different seed on each rank (line {seeds[0].lineno}) and never broadcast",
                "dist.broadcast of the parameters",
                label="each rank has different weights",
            )


def _differs(module: Module, node: ast.expr) -> bool:
    values = each_rank(module, node, trusting=True)
    return Unknown.VARIES in values or any(v != values[0] for v in values)


def _model_after(module: Module, seed: ast.Call) -> ast.AST | None:
    """The statement after a seed, in its function, that builds what is trained."""
    trained = {
        ast.unparse(c.func.value)
        for c in module.method_calls.get("parameters", ())
        if isinstance(c.func, ast.Attribute) and isinstance(c.func.value, ast.Name)
    }
    function = module.index.function_of(seed)
    nodes = inner(function) if function is not None else inner(module.tree)
    built = [
        n
        for n in nodes
        if isinstance(n, ast.Assign)
        and n.lineno > seed.lineno
        and isinstance(n.targets[0], ast.Name)
        and n.targets[0].id in trained
        and isinstance(n.value, ast.Call)
    ]
    return min(built, key=lambda n: n.lineno, default=None)


@loss_reduced_before_backward.look
def reduced_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A collective changed the loss in place before its backward pass."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.REDUCED_LOSS,
        lambda o, who: f"the loss is changed by {o.values['what']} before its backward pass",
        label="the gradient is that of another value",
        expected="a detached copy of the loss",
    )


@parameters_never_broadcast.look
def not_broadcast_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The initial parameters differ, and only gradients are averaged."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NEVER_BROADCAST,
        lambda o, who: "the initial parameters differ between ranks, and only gradients are averaged",
        label="each rank has different weights",
        expected="dist.broadcast of the parameters",
    )


@gathered_tensors_without_gradient.look
def gathered_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Gathered tensors without a gradient that a loss uses."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.GATHERED_CUT,
        lambda o, who: "the loss uses gathered tensors that have no gradient",
        label="all_gather cuts off the gradient",
        expected="the own part put back, or a gather with a gradient",
    )


@gradients_summed_not_averaged.look
def summed_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Gradients of mean losses that are summed and not divided."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.GRADIENTS_SUMMED,
        lambda o, who: f"gradients are summed over {o.values['ranks']} ranks and not divided",
        label="the learning rate grows with the number of ranks",
        expected="a division by the number of ranks",
    )
