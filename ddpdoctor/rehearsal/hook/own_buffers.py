"""Tensors that should hold values and agree: buffers that a module of the user updates, and memory that nothing has filled."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import Place, frames_of_user, is_of_user, place

__all__ = ["WRITES", "compare", "watch", "written"]

MOST_COMPARISONS = 12
MOST_BUFFERS = 40
MOST_ELEMENTS = 1_000_000
WRITES = frozenset(("copy_", "add_", "mul_", "sub_", "div_", "fill_", "__setitem__", "__iadd__", "__imul__"))

_writers: dict[int, list[Place]] = {}
"""Where the buffers that are compared were changed last, by id."""
_count = {"comparisons": 0}
_empty: list[tuple[Any, Any, list[tuple[str, Any, int, float]], list[Place]]] = []
"""Modules whose memory was allocated without values: the module, the names and states of its tensors, and the place."""


def watch() -> None:
    """Notice memory that is allocated without values."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    original = torch.nn.Module.to_empty

    @functools.wraps(original)
    def to_empty(self: Any, *args: Any, **kwargs: Any) -> Any:
        at = place()
        result = original(self, *args, **kwargs)
        tensors = [*self.named_parameters(), *self.named_buffers()]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            known = [(name, weakref.ref(t), *_state(t)) for name, t in tensors]
        _empty.append((weakref.ref(self), None, known, at))
        return result

    torch.nn.Module.to_empty = to_empty
    register_module_forward_pre_hook(_called)


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def _state(tensor: Any) -> tuple[int, float]:
    """The version and a sum of a tensor: whoever writes into it changes one of them."""
    local = _local(tensor)
    if local.device.type != "cpu" or local.layout is not torch.strided:
        return -1, 0.0
    total = float(local.detach().double().nan_to_num().abs().sum()) if local.numel() <= MOST_ELEMENTS else 0.0
    return int(local._version), total


def _called(module: Any, _: Any) -> None:
    """A module is called: has something filled the memory of its tensors?"""
    if not _empty:
        return
    for entry in list(_empty):
        known = entry[0]()
        if known is None or known is module or any(each is module for each in known.modules()):
            _empty.remove(entry)
            if known is not None:
                _say_empty(entry[2], entry[3])


def _say_empty(tensors: list[tuple[str, Any, int, float]], at: list[Place]) -> None:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        names = [
            name
            for name, reference, version, total in tensors
            if (tensor := reference()) is not None and version >= 0 and _state(tensor) == (version, total)
        ]
    if names:
        channel().say("never_filled", at=at, names=names[:20], used=frames_of_user())


def written(name: str, target: Any) -> None:
    """A tensor is changed in place."""
    if id(target) in _writers:
        caller = sys._getframe(2)
        if is_of_user(caller.f_code.co_filename):
            _writers[id(target)] = frames_of_user(caller)


def compare(model: Any) -> None:
    """Report the buffers of the user's own modules in a DDP model that is called in training, before DDP broadcasts them."""
    if _count["comparisons"] >= MOST_COMPARISONS or not torch.is_grad_enabled() or not model.training:
        return
    found = [
        (f"{path}.{name}" if path else name, buffer)
        for path, module in model.module.named_modules()
        if _is_of_user(type(module))
        for name, buffer in module.named_buffers(recurse=False)
        if type(buffer) is torch.Tensor and buffer.is_floating_point() and buffer.device.type == "cpu"
    ]
    if not found or len(found) > MOST_BUFFERS or sum(b.numel() for _, b in found) > MOST_ELEMENTS:
        return
    _count["comparisons"] += 1
    for _, buffer in found:
        _writers.setdefault(id(buffer), [])
    with torch.no_grad(), torch._C.DisableTorchFunction():
        sums = [[float(b.double().sum()), float(b.double().abs().sum())] for _, b in found]
    channel().say(
        "own_buffers",
        at=frames_of_user(),
        names=[name for name, _ in found],
        sums=sums,
        written=[_writers[id(b)] for _, b in found],
        broadcasts=bool(getattr(model, "broadcast_buffers", False)),
    )


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_of_user(file)
