"""What replaces code that needs a GPU: torch.compile does nothing, flash-attn is scaled_dot_product_attention."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import torch

from ddpdoctor.rehearsal.hook import deepspeed_ops
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.cuda import refuse
from ddpdoctor.rehearsal.hook.places import place
from ddpdoctor.rehearsal.hook.replaced import replaced
from ddpdoctor.rehearsal.hook.trackers import TrackerFinder

__all__ = ["install"]

NEEDS_GPU = (
    "triton",
    "xformers",
    "apex",
    "transformer_engine",
    "amp_C",
    "bitsandbytes",
    "vllm",
    "cupy",
    "pynccl",
    "deep_ep",
    "flashinfer",
    "nvidia.dali",
)
"""Packages that are not installed here and whose use ends the rehearsal."""


def install() -> None:
    """Put the stand-ins in place."""
    torch.compile = _compile
    torch.nn.Module.compile = lambda self, *_, **__: replaced("torch.compile", "eager execution")
    torch.Tensor.record_stream = lambda self, stream: None
    torch.backends.cuda.is_built = lambda: True
    sys.meta_path.append(_Finder())
    if channel().config.get("gpus", 0):
        deepspeed_ops.install()
    if channel().config.get("cuts_network"):
        sys.meta_path.insert(0, TrackerFinder())


def _compile(model: Any = None, **options: Any) -> Any:
    replaced("torch.compile", "eager execution")
    return model if model is not None else lambda each: each


def _attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, **_: Any
) -> Any:
    replaced("flash_attn", "scaled_dot_product_attention")
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    if k.shape[1] != q.shape[1]:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale
    )
    return found.transpose(1, 2)


def _packed(qkv: Any, *args: Any, **options: Any) -> Any:
    return _attention(*qkv.unbind(2), *args, **options)


class _Finder(importlib.abc.MetaPathFinder):
    """The last finder: it is asked only for what is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in ("flash_attn", "flash_attn.flash_attn_interface"):
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        if name in NEEDS_GPU or name.startswith("flash_attn."):
            channel().say("missing_gpu_package", what=name, at=place())
        return None


class _Loader(importlib.abc.Loader):
    """Makes the stand-in for flash_attn."""

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "2.8.0"  # type: ignore[attr-defined]
        module.flash_attn_func = _attention  # type: ignore[attr-defined]
        module.flash_attn_qkvpacked_func = _packed  # type: ignore[attr-defined]
        for name in ("flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"):
            setattr(module, name, functools.partial(_refused, name))


def _refused(name: str, *_: Any, **__: Any) -> None:
    refuse(f"flash_attn.{name}")
