"""SCRIPT022: CPU tensors that are passed to NCCL."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, with_keyword
from ddpdoctor.rules.script.script001_to_003_device_selection import CREATED
from ddpdoctor.rules.script.script_questions import argument, backends, has_more, last_value, value
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

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


@cause(
    "SCRIPT022",
    "cpu-tensor-with-nccl",
    Severity.ERROR,
    signatures=(r"No backend type associated with device type cpu", r"Tensors must be CUDA and dense"),
)
def cpu_tensor_with_nccl(script: Script) -> Iterator[Finding]:
    """A CPU tensor is passed to an NCCL collective.

    ## Why it matters
    It fails with `RuntimeError: No backend type associated with device type cpu`. Metrics and lengths are often
    created without a device.

    ## Fix
    Create the tensor on the GPU of the rank.

    `init_process_group("cpu:gloo,cuda:nccl")` allows both.

    ## Example
        # before
        total = torch.tensor([loss.item()])
        dist.all_reduce(total)
        # RuntimeError: No backend type associated with device type cpu

        # after
        total = torch.tensor([loss.item()], device="cuda")
        dist.all_reduce(total)
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
    for tensor in given:
        made = last_value(module, tensor)
        if isinstance(made, ast.Call) and _stays_on_cpu(module, made):
            device = argument(made, None, "device")
            if (device is None or value(module, device) == "cpu") and not _moved(module, tensor):
                yield point(
                    module,
                    call,
                    f"{code(module, tensor)} is a CPU tensor (line {made.lineno}), but NCCL needs CUDA tensors",
                    'device="cuda"',
                    label="No backend type associated with device type cpu",
                    edits=_on_gpu(module, made, device),
                )
                return


def _stays_on_cpu(module: Module, made: ast.Call) -> bool:
    """Whether the result of a call is on the CPU: a new tensor, or `x.cpu()`."""
    name = module.names.of(made.func)
    if isinstance(made.func, ast.Attribute) and made.func.attr == "cpu" and not made.args:
        return name is None
    like = name is not None and name.endswith("_like")
    return name in _ON_CPU and not like and not has_more(made) and not _in_device_context(module, made)


def _in_device_context(module: Module, node: ast.AST) -> bool:
    """Whether `with torch.device("cuda"):` is around it."""
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
    """Whether the data of the tensor is moved to a device in place."""
    text = ast.unparse(node)
    return any(f"{text}.data = " in line or f"{text} = {text}." in line for line in module.lines)


@cpu_tensor_with_nccl.look
def cpu_tensor(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A CPU tensor in a collective of nccl."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.CPU_TENSOR,
        lambda o, who: f"a CPU tensor is passed to {o.values['operation']}() of an nccl group ({who})",
        label="this tensor is on the CPU",
        expected="a tensor on the rank's GPU",
    )
