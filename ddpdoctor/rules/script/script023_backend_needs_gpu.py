"""SCRIPT023: a backend that needs a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.late_pattern import pattern
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import point, replace
from ddpdoctor.rules.script.script_questions import argument, backends, last_value, start_of
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

_ELSEWHERE = pattern(
    r"\.cuda\b|torch\.accelerator|set_default_device|set_default_tensor_type|\.to\((?![\"']cpu[\"']\))|device_id|gpu"
)
"""What may put tensors on a GPU."""


@cause(
    "SCRIPT023",
    "backend-needs-gpu",
    Severity.ERROR,
    signatures=(r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",),
)
def backend_needs_gpu(script: Script, launch: Launch | None = None, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The script requires CUDA or nccl where there is no GPU.

    ## Why it matters
    On a machine without a GPU it fails with an AssertionError, or with `Distributed package doesn't have NCCL built
    in`. The rest of the script may well run on the CPU.

    ## Fix
    Choose the backend by the machine: `"nccl" if torch.cuda.is_available() else "gloo"`.

    Without a backend argument, torch chooses it itself.

    ## Example
        # before
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dist.init_process_group("nccl")
        # RuntimeError: Distributed package doesn't have NCCL built in

        # after
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    """
    for module in modules(script):
        if backends(module) != {"nccl"} or module.frameworks:
            continue
        call = module.calls("dist.init_process_group")[0]
        if start_of(module, launch) is not None and _has_none(gpu):
            yield point(
                module,
                call,
                "the backend is nccl, but this machine has no CUDA GPU",
                '"nccl" if torch.cuda.is_available() else "gloo"',
                label="every rank fails here",
            )
            continue
        if _is_of_cpu(module):
            yield point(
                module,
                call,
                "the backend is nccl, but this script puts no tensor on a GPU",
                '"nccl" if torch.cuda.is_available() else "gloo"',
                label="nccl fails at the first collective",
                fix="Use gloo, or move the tensors to the GPU.",
            )
            continue
        asserted = next((a for a in module.index.parents if _demands(module, a)), None)
        chosen = next(
            (e for e in module.index.parents if isinstance(e, ast.IfExp) and _asks(module, e.test) and _cpu(e)), None
        )
        if asserted is None and chosen is None:
            continue
        if any(
            isinstance(p, ast.If) and c in p.body and _asks(module, p.test) for p, c in module.index.enclosing(call)
        ):
            continue
        at: ast.AST = asserted if asserted is not None else call
        line = chosen.lineno if chosen is not None else call.lineno
        message = (
            f"line {line} falls back to the CPU, but the backend is always nccl"
            if chosen is not None
            else "the script stops here without a GPU, and its backend is always nccl"
        )
        yield point(
            module,
            at,
            message,
            '"nccl" if torch.cuda.is_available() else "gloo"',
            label="use gloo where there is no GPU",
            severity=Severity.NOTE,
            edits=_either(module, call),
        )


def _is_of_cpu(module: Module) -> bool:
    """Whether the program wraps a model of its own that is never moved to a GPU, and names no device but the CPU."""
    if not module.is_program or _ELSEWHERE.search(module.text) or _has_none_own(module):
        return False
    named = [n.value for n in ast.walk(module.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return not any("cuda" in text for text in named)


def _has_none_own(module: Module) -> bool:
    """Whether no wrapped model is built in this file, from torch's layers or a class of its own."""
    for call in module.calls("DDP"):
        given = argument(call, 0, "module")
        made = last_value(module, given) if given is not None else None
        while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in ("to", "train"):
            made = made.func.value
        is_layer = isinstance(made, ast.Call) and (module.names.of(made.func) or "").startswith("nn.")
        if is_layer or (isinstance(made, ast.Call) and module.class_named(made.func) is not None):
            return False
    return True


def _demands(module: Module, node: ast.AST) -> bool:
    """Whether it is `assert torch.cuda.is_available()`, or raises if CUDA is not available."""
    if isinstance(node, ast.If):
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        return negated and _asks(module, node.test) and isinstance(node.body[-1], ast.Raise)
    return isinstance(node, ast.Assert) and _asks(module, node.test)


def _has_none(gpu: Gpu | None) -> bool:
    """Whether this machine was examined and certainly has no GPU."""
    if gpu is None or gpu.devices or gpu.other_accelerators:
        return False
    gap = gpu.gap("devices")
    return gap is None or gap.why is Why.NOT_HERE


def _asks(module: Module, test: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) and module.names.of(n.func) == "cuda.is_available" for n in ast.walk(test))


def _either(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    backend = argument(call, 0, "backend")
    text = '"nccl" if torch.cuda.is_available() else "gloo"'
    known = isinstance(backend, ast.Constant) and "torch" in module.index.scopes[module.tree].names
    return (replace(module, backend, text),) if backend is not None and known else ()


def _cpu(node: ast.IfExp) -> bool:
    return any(isinstance(n, ast.Constant) and n.value == "cpu" for n in ast.walk(node.orelse))
