"""Stand-ins for the extensions that DeepSpeed compiles: its Adam on CPU and GPU in torch's own operations; others need a GPU."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import SimpleNamespace
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.cuda import refuse
from ddpdoctor.rehearsal.hook.replaced import replaced

__all__ = ["install"]

BUILDERS = ("deepspeed.ops.op_builder.builder", "op_builder.builder")
CUDA_VERSION = (12, 8)
"""The compiler that DeepSpeed's import asks for."""


def adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
    decay: float,
    **on: Any,
) -> None:
    """One step of Adam on one tensor. `is_decoupled`: the decay of AdamW; `is_corrected`: with bias correction."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        first, second = betas
        gradient = g.to(m.dtype) if on["is_decoupled"] else g.to(m.dtype) + decay * p.to(m.dtype)
        m.mul_(first).add_(gradient, alpha=1 - first)
        v.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        one, two = (1 - first**step, 1 - second**step) if on["is_corrected"] else (1.0, 1.0)
        change = (m / one) / ((v / two).sqrt() + eps)
        change = change + decay * p.to(m.dtype) if on["is_decoupled"] else change
        p.sub_((lr * change).to(p.dtype))


def _fused_adam(
    _chunk: int, _overflow: Any, tensors: Any, lr: float, first: float, second: float, eps: float, step: int, *more: Any
) -> None:
    is_decoupled, is_corrected, decay = more
    with torch._C.DisableTorchFunction():
        for g, p, m, v in zip(*tensors, strict=True):
            on = {"is_decoupled": bool(is_decoupled), "is_corrected": bool(is_corrected)}
            adam(p.data, g, m, v, lr, (first, second), eps, int(step), decay, **on)


class _CpuAdam:
    """The optimizers of one process, by the numbers that DeepSpeed gives them."""

    def __init__(self) -> None:
        self._decoupled: dict[int, bool] = {}

    def create_adam(self, number: int, *settings: Any) -> int:
        self._decoupled[number] = bool(settings[5])
        return 0

    def destroy_adam(self, number: int) -> int:
        self._decoupled.pop(number, None)
        return 0

    def adam_update(self, number: int, step: int, lr: float, first: float, second: float, *more: Any) -> int:
        eps, decay, is_corrected, p, g, m, v = more[:7]
        on = {"is_decoupled": self._decoupled.get(number, True), "is_corrected": bool(is_corrected)}
        adam(p, g, m, v, lr, (first, second), eps, int(step), decay, **on)
        return 0


def _load(builder: Any, verbose: bool = True) -> Any:
    if builder.name == "fused_adam":
        replaced("DeepSpeed's FusedAdam", "the same steps on CPU")
        return SimpleNamespace(multi_tensor_adam=_fused_adam)
    if builder.name == "cpu_adam":
        replaced("DeepSpeed's CPUAdam", "the same steps without its extension")
        return _CpuAdam()
    if builder.name == "utils":
        return SimpleNamespace(
            flatten=torch._utils._flatten_dense_tensors, unflatten=torch._utils._unflatten_dense_tensors
        )
    return refuse(f"DeepSpeed's extension {builder.name}")


class _DeepSpeedFinder(importlib.abc.MetaPathFinder):
    """Finds the module that builds extensions, with a loader that replaces what would compile."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in BUILDERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _BuilderLoader(spec.loader)
        return spec


class _BuilderLoader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        module.installed_cuda_version = lambda name="": CUDA_VERSION
        module.assert_no_cuda_mismatch = lambda name="": True
        module.OpBuilder.load = _load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def install() -> None:
    """Look for DeepSpeed's builders from now on."""
    sys.meta_path.insert(0, _DeepSpeedFinder())
