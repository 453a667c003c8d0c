"""SCRIPT022 and SCRIPT038: tensors that are given to collectives, and when they are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.facts.script.module import Module, modules
from ddpdoctor.facts.script.nodes import inner
from ddpdoctor.facts.script.vocabulary import GROUP_POSITION
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.script.branches import blocks
from ddpdoctor.rules.script.devices import CREATED
from ddpdoctor.rules.script.pointing import after, code, point, replace, waited, with_keyword
from ddpdoctor.rules.script.situation import argument, backends, has_more, last_value, value

_ON_CPU = CREATED | {f"torch.{kind}Tensor" for kind in ("", "Float", "Double", "Half", "Long", "Int", "Byte", "Bool")}
_ON_CPU |= {"torch.from_numpy"}
_TENSORS = {
    "dist.all_reduce": (0,),
    "dist.broadcast": (0,),
    "dist.reduce": (0,),
    "dist.all_gather": (1,),
    "dist.gather": (0,),
    "dist.scatter": (0,),
    "dist.all_gather_into_tensor": (0, 1),
    "dist.send": (0,),
    "dist.recv": (0,),
}


@rule(
    "SCRIPT022",
    "cpu-tensor-with-nccl",
    Severity.ERROR,
    signatures=(r"No backend type associated with device type cpu", r"Tensors must be CUDA and dense"),
)
def on_cpu(script: Script) -> Iterator[Finding]:
    """A CPU tensor is given to an NCCL collective.

    ## Why it matters
    `RuntimeError: No backend type associated with device type cpu`: metrics and lengths are often made without a
    device.

    ## Fix
    Make the tensor on the rank's GPU, or initialise with `backend="cpu:gloo,cuda:nccl"`.
    """
    for module in modules(script):
        if (
            backends(module) != {"nccl"}
            or "set_default_device" in module.text
            or "set_default_tensor_type" in module.text
        ):
            continue
        for name, positions in _TENSORS.items():
            for call in module.calls(name):
                group = argument(call, GROUP_POSITION.get(name), "group")
                if group is None and not has_more(call):
                    given = [argument(call, at, "tensor" if at == 0 else "") for at in positions]
                    yield from _cpu(module, call, [g for g in given if g is not None])


def _cpu(module: Module, call: ast.Call, given: list[ast.expr]) -> Iterator[Finding]:
    for each in given:
        made = last_value(module, each)
        if isinstance(made, ast.Call) and _stays_on_cpu(module, made):
            device = argument(made, None, "device")
            if (device is None or value(module, device) == "cpu") and not _moved(module, each):
                yield point(
                    module,
                    call,
                    f"{code(module, each)} is made on the CPU (line {made.lineno}) and NCCL takes CUDA tensors only "
                    '("No backend type associated with device type cpu"); expected it on the GPU of the rank',
                    'device="cuda"',
                    edits=_on_gpu(module, made, device),
                )
                return


def _stays_on_cpu(module: Module, made: ast.Call) -> bool:
    """What a call makes lies on the CPU: a new tensor, or `x.cpu()`."""
    name = module.names.of(made.func)
    if isinstance(made.func, ast.Attribute) and made.func.attr == "cpu" and not made.args:
        return name is None
    like = name is not None and name.endswith("_like")
    return name in _ON_CPU and not like and not has_more(made) and not _in_device_context(module, made)


def _in_device_context(module: Module, node: ast.AST) -> bool:
    """`with torch.device("cuda"):` around it."""
    items = [i for p, _ in module.index.enclosing(node) if isinstance(p, (ast.With, ast.AsyncWith)) for i in p.items]
    return any("device" in ast.unparse(item.context_expr) for item in items)


def _on_gpu(module: Module, made: ast.Call, device: ast.expr | None) -> tuple[Edit, ...]:
    if device is not None:
        return (replace(module, device, '"cuda"'),)
    if module.names.of(made.func) in CREATED:
        return (with_keyword(module, made, 'device="cuda"'),)
    if isinstance(made.func, ast.Attribute) and made.func.attr == "cpu":
        return (replace(module, made, f"{code(module, made.func.value, 400)}.cuda()"),)
    return (replace(module, made, f"{code(module, made, 400)}.cuda()"),)


def _moved(module: Module, node: ast.expr) -> bool:
    """Whether the tensor's own data goes to a device in place."""
    text = ast.unparse(node)
    return any(f"{text}.data = " in line or f"{text} = {text}." in line for line in module.lines)


@rule("SCRIPT038", "async-result-read-early", Severity.ERROR)
def read_early(script: Script) -> Iterator[Finding]:
    """The result of an asynchronous collective is read before wait.

    ## Why it matters
    The tensor still holds the old value, or part of the new one. There is no error.

    ## Fix
    `work = dist.all_reduce(t, async_op=True)`, then `work.wait()` before the tensor is read.
    """
    for module in modules(script):
        for call in _asynchronous(module):
            tensor = argument(call, 0, "tensor", "tensor_list", "output_tensor")
            if not isinstance(tensor, (ast.Name, ast.Attribute)):
                continue
            text = ast.unparse(tensor)
            read = _read_before_wait(module, call, text)
            if read is not None:
                yield point(
                    module,
                    read,
                    f"{text} is read while {code(module, call.func)} of line {call.lineno} may still be writing "
                    "it: the value is "
                    "the old one or half done; expected wait() before",
                    "work.wait() before this line",
                    edits=_waited(module, call),
                )


def _waited(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    statement = module.index.statement(call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return waited(
            module, statement.targets[0].id, after(module, statement, f"{statement.targets[0].id}.wait()"), statement
        )
    return (replace(module, call, f"{code(module, call, 400)}.wait()"),)


def _asynchronous(module: Module) -> Iterator[ast.Call]:
    yield from module.calls("dist.irecv")
    for name in ("dist.all_reduce", "dist.broadcast", "dist.reduce", "dist.all_gather", "dist.all_gather_into_tensor"):
        for call in module.calls(name):
            flag = argument(call, None, "async_op")
            if isinstance(flag, ast.Constant) and flag.value is True:
                yield call


def _read_before_wait(module: Module, call: ast.Call, name: str) -> ast.AST | None:
    """The first use of the tensor after the call and before anything waits, among the statements that follow."""
    statement = module.index.statement(call)
    parent = module.index.parents.get(call)
    handle = (
        statement.targets[0].id
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        else ""
    )
    if not (isinstance(parent, ast.Expr) or (isinstance(parent, ast.Assign) and handle)):
        return None
    block = next((b for b in blocks(module.index.parents[statement]) if statement in b), [])
    for following in block[block.index(statement) + 1 :] if block else ():
        for node in inner(following):
            if isinstance(node, ast.Attribute) and node.attr in (
                "wait",
                "synchronize",
                "is_completed",
                "result",
                "get_future",
            ):
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


def _is_read(module: Module, read: ast.Name | ast.Attribute, following: ast.stmt) -> bool:
    """A use of the value: not the next collective's argument, not a mere question for its shape."""
    parent = module.index.parents[read]
    unused = (
        isinstance(following, ast.Expr) and isinstance(following.value, ast.Call) and following.value.func is parent
    )
    if unused:
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
