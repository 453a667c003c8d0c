"""SCRIPT694 to SCRIPT698: results that nobody uses, schedules that do not fit, hooks and checkpoints with DDP."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, is_test
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.sync_schedule import unsynchronized_steps

_FILLED = ("dist.broadcast_object_list", "dist.broadcast", "dist.all_reduce")
_TENSORS = ("torch.tensor", "torch.as_tensor", "cuda.LongTensor", "cuda.FloatTensor")


@cause("SCRIPT694", "agreed-value-unused", Severity.ERROR)
def agreed_value_unused(script: Script) -> Iterator[Finding]:
    """A value is exchanged with the other ranks, and the program uses its own value.

    ## Why it matters
    The collective fills the list or tensor that it is given. The variable that the list was made from keeps the value of this
    rank, so that the ranks disagree as if there were no call.

    ## Fix
    Read the result from the list or tensor.

    ## Example
        # before
        box = [config]
        dist.broadcast_object_list(box, src=0)
        return config

        # after
        box = [config]
        dist.broadcast_object_list(box, src=0)
        return box[0]
    """
    for module in modules(script):
        if is_test(module):
            continue
        for call in module.calls(*_FILLED):
            used = _used_instead(module, call)
            if used is not None:
                held = code(module, call.args[0], 30)
                yield point(
                    module,
                    used,
                    f"{used.id} has the value of this rank; the call in line {call.lineno} has filled {held}",
                    f"the filled {held} instead of {used.id}",
                    label="not the value that all ranks agreed on",
                )


def _used_instead(module: Module, call: ast.Call) -> ast.Name | None:
    """The first use of the variable that a container was made from, if the container is not read after the call."""
    function = module.index.function_of(call)
    held = call.args[0] if call.args else None
    if not isinstance(held, ast.Name) or not isinstance(module.index.parents.get(call), ast.Expr):
        return None
    body = function if function is not None else module.tree
    nodes = [n for n in inner(body) if isinstance(n, ast.Name)]
    made = [
        p
        for n in nodes
        if n.id == held.id and isinstance(n.ctx, ast.Store) and isinstance(p := module.index.parents.get(n), ast.Assign)
    ]
    stored = [n for n in nodes if n.id == held.id and isinstance(n.ctx, ast.Store)]
    if len(made) != 1 or len(stored) != 1:
        return None
    source = _source(module, made[0].value)
    if source is None or any(n.id == held.id and isinstance(n.ctx, ast.Load) and n is not held for n in nodes):
        return None
    if any(isinstance(n, ast.Global | ast.Nonlocal) for n in inner(body)):
        return None
    later = [n for n in nodes if n.id == source and isinstance(n.ctx, ast.Load) and n.lineno > call.lineno]
    loops = [n for n in nodes if n.id == source and isinstance(n.ctx, ast.Store) and n.lineno > call.lineno]
    first = min((n.lineno for n in loops), default=10**9)
    is_list = isinstance(made[0].value, ast.List)
    used = [
        n for n in later if n.lineno <= first and (_decides(module, n) or (is_list and not _is_measured(module, n)))
    ]
    return min(used, key=lambda n: (n.lineno, n.col_offset), default=None)


def _decides(module: Module, name: ast.Name) -> bool:
    """Whether the truth of a variable selects a branch."""
    parent = module.index.parents.get(name)
    while isinstance(parent, ast.UnaryOp | ast.BoolOp | ast.Compare):
        name, parent = parent, module.index.parents.get(parent)  # type: ignore[assignment]
    return isinstance(parent, ast.If | ast.While) and parent.test is name


def _is_measured(module: Module, name: ast.Name) -> bool:
    parent = module.index.parents.get(name)
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id in ("len", "print", "type")
    )


def _source(module: Module, value: ast.expr) -> str | None:
    """The variable whose value a container carries: `[x]`, `torch.tensor([int(x)])`, `x.clone()`."""
    while True:
        if isinstance(value, ast.List) and len(value.elts) == 1:
            value = value.elts[0]
        elif (
            isinstance(value, ast.Call)
            and module.names.of(value.func) in (*_TENSORS, "int", "float", "bool")
            and value.args
        ):
            value = value.args[0]
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES:
            value = value.func.value
        else:
            return value.id if isinstance(value, ast.Name) else None


_COPIES = ("clone", "detach", "to", "cuda", "float", "cpu")


@cause("SCRIPT695", "step-without-synchronized-gradients", Severity.ERROR)
def step_without_synchronized_gradients(script: Script) -> Iterator[Finding]:
    """The optimizer steps after a backward pass whose gradients were not reduced.

    ## Why it matters
    The switch that turns reduction off stays off, or turns it on in another micro batch than the last one. Each rank then applies
    gradients of its own data, and the models drift apart without an error.

    ## Fix
    Use one condition for the reduction and for the step.

    ## Example
        # before
        model.require_backward_grad_sync = step % 4 == 0
        loss.backward()
        if step % 4 == 3:
            optimizer.step()

        # after
        last = step % 4 == 3
        model.require_backward_grad_sync = last
        loss.backward()
        if last:
            optimizer.step()
    """
    for module in modules(script):
        if is_test(module):
            continue
        for node, step in unsynchronized_steps(module):
            line = getattr(step, "lineno", 0)
            yield point(
                module,
                node,
                f"no reduction in the micro batch before the optimizer step (line {line})",
                "reduction in the last micro batch before each step",
                label="gradients stay local",
            )


@cause("SCRIPT696", "communication-hook-sums", Severity.ERROR)
def communication_hook_sums(script: Script) -> Iterator[Finding]:
    """A communication hook of DDP adds gradients and does not divide them.

    ## Why it matters
    With a hook, DDP does not divide by the world size. The gradients are world_size times too large, which acts like a
    larger learning rate.

    ## Fix
    Divide the buffer by the world size in the hook, or reduce with `ReduceOp.AVG`.

    ## Example
        # before
        def hook(state, bucket):
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda f: f.value()[0])

        # after
        def hook(state, bucket):
            buffer = bucket.buffer().div_(dist.get_world_size())
            work = dist.all_reduce(buffer, async_op=True)
            return work.get_future().then(lambda f: f.value()[0])

    ## Source
    PyTorch documentation, DDP Communication Hooks: the hook replaces the allreduce, and its result is used as the gradient.
    """
    for module in modules(script):
        for call in module.method_calls.get("register_comm_hook", ()):
            given = argument(call, 1, "hook")
            target = module.target_of(given) if given is not None else None
            if target is None or target.module is not module:
                continue
            reduces = _sums(module, target.function)
            if reduces is not None:
                yield point(
                    module,
                    reduces,
                    "this communication hook adds the gradients of all ranks and does not divide",
                    "a division by the world size, or ReduceOp.AVG",
                    label="gradients are world_size times too large",
                )


def _sums(module: Module, function: ast.AST) -> ast.Call | None:
    """The all_reduce of a hook that divides nowhere."""
    nodes = list(ast.walk(function))
    divides = any(isinstance(n, ast.BinOp | ast.AugAssign) and isinstance(n.op, ast.Div | ast.Mult) for n in nodes)
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    words = {c.func.attr for c in calls if isinstance(c.func, ast.Attribute)}
    if divides or words & {"div_", "div", "mul_", "mul", "true_divide", "scale"}:
        return None
    if any(module.target_of(c.func) is not None or "hook" in ast.unparse(c.func) for c in calls):
        return None
    reduces = [c for c in calls if module.names.of(c.func) in ("dist.all_reduce", "dist.reduce_scatter_tensor")]
    if len(reduces) != 1 or "AVG" in ast.unparse(reduces[0]) or "PREMUL" in ast.unparse(reduces[0]):
        return None
    return reduces[0]


@cause("SCRIPT697", "reentrant-checkpoint-with-ddp", Severity.ERROR)
def reentrant_checkpoint_with_ddp(script: Script) -> Iterator[Finding]:
    """Reentrant checkpointing is used for a layer that DDP sees several times.

    ## Why it matters
    Reentrant checkpointing runs a backward pass for each use of the layer, and DDP sees its parameters ready more than once:
    `Expected to mark a variable ready only once`.

    ## Fix
    Pass `use_reentrant=False` to checkpoint, or `static_graph=True` to DDP.

    ## Example
        # before
        for _ in range(depth):
            x = checkpoint(self.block, x, use_reentrant=True)

        # after
        for _ in range(depth):
            x = checkpoint(self.block, x, use_reentrant=False)

    ## Source
    PyTorch documentation of torch.utils.checkpoint and of DistributedDataParallel (static_graph).
    """
    for module in modules(script):
        wraps = module.calls("DDP")
        if not wraps or "static_graph" in module.text or "_set_static_graph" in module.text:
            continue
        finds = any(
            isinstance(k.value, ast.Constant) and k.value.value is True
            for c in wraps
            for k in c.keywords
            if k.arg == "find_unused_parameters"
        )
        for call in module.calls("torch.utils.checkpoint.checkpoint"):
            given = argument(call, None, "use_reentrant")
            is_reentrant = isinstance(given, ast.Constant) and given.value is True
            if is_reentrant and (finds or _is_repeated(module, call)):
                reason = "find_unused_parameters=True" if finds else "a layer that runs several times"
                yield point(
                    module,
                    call,
                    f"reentrant checkpointing with DDP and {reason}",
                    "use_reentrant=False, or DDP(static_graph=True)",
                    label="parameters become ready more than once",
                )


def _is_repeated(module: Module, call: ast.Call) -> bool:
    """Whether one layer is checkpointed in each turn of a loop."""
    layer = call.args[0] if call.args else None
    if not isinstance(layer, ast.Attribute):
        return False
    for parent, _ in module.index.enclosing(call):
        if isinstance(parent, ast.FunctionDef | ast.Lambda):
            return False
        if isinstance(parent, ast.For):
            bound = {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}
            return not bound & {n.id for n in ast.walk(layer) if isinstance(n, ast.Name)}
    return False


@cause("SCRIPT698", "state-saved-on-main-process", Severity.WARNING)
def state_saved_on_main_process(script: Script) -> Iterator[Finding]:
    """Only the main process calls a save or load of its framework that needs all processes.

    ## Why it matters
    `save_state` saves the random state of each process, and gathers what FSDP and DeepSpeed have divided. On the main process
    alone, the state of the others is lost, or it waits for them.

    ## Fix
    Call it on all processes; it writes common files once.

    ## Example
        # before
        if accelerator.is_main_process:
            accelerator.save_state(folder)

        # after
        accelerator.save_state(folder)

    ## Source
    Documentation of Accelerate, Checkpointing, and of Lightning's Trainer.save_checkpoint.
    """
    for module in modules(script):
        if is_test(module) or "DistributedType" in module.text or "Plugin" in module.text:
            continue
        for call in _needing_all(module):
            if in_rank_branch(module, call):
                yield point(
                    module,
                    call,
                    f"{code(module, call.func, 40)}() runs on the main process only",
                    "the call on all processes",
                    label="the other processes take no part",
                )


def _needing_all(module: Module) -> Iterator[ast.Call]:
    for name in ("save_state", "load_state"):
        for call in module.method_calls.get(name, ()):
            base = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if "accelerator" in base.lower() and "accelerate" in module.frameworks:
                yield call
    if "fsdp=" in module.text or "deepspeed=" in module.text:
        for call in module.method_calls.get("save_model", ()):
            base = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if base.endswith("trainer") and "transformers" in module.text:
                yield call
