"""What should be equal on all ranks: models that are evaluated, learning rates, values that a DTensor calls replicated."""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.rehearsal.hook import origins
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.ending import steps
from ddpdoctor.rehearsal.hook.places import frames_of_user, is_of_user, place

__all__ = ["rates", "watch"]

MOST_EVALUATIONS = 24
MOST_REPLICATED = 60
MOST_RATES = 60
MOST_MESHES = 20
MOST_TENSORS = 400
MOST_ELEMENTS = 4_000_000

_counts = {"evaluations": 0, "replicated": 0, "rates": 0, "meshes": 0, "step": -1}
_seen: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules that were examined since the last step, with the modules in them."""


def watch() -> None:
    """Examine models that are evaluated, replicated tensors, and state that is loaded."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    register_module_forward_pre_hook(_called)
    _watch_loading()
    _watch_meshes()


def _called(module: Any, _: Any) -> None:
    """A module is called; without gradients and not in training, it is evaluated."""
    if torch.is_grad_enabled() or module.training or _counts["evaluations"] >= MOST_EVALUATIONS:
        return
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return
    if _counts["step"] != steps().optimizer_steps:
        _counts["step"] = steps().optimizer_steps
        _seen.clear()
    if module in _seen:
        return
    for each in module.modules():
        _seen.add(each)
    sums = _sums(list(module.parameters()))
    buffers = [b for b in module.buffers() if b.is_floating_point()]
    if sums is None:
        return
    _counts["evaluations"] += 1
    channel().say(
        "evaluated",
        at=frames_of_user(),
        what=type(module).__name__,
        sums=sums,
        buffers=_sums(buffers) or [],
        digest=zlib.crc32(repr([list(p.shape) for p in module.parameters()]).encode()),
        is_ddp=type(module).__name__ == "DistributedDataParallel",
        step=_counts["step"],
    )


def _sums(tensors: list[Any]) -> list[list[float]] | None:
    """Two sums for each tensor, None for what is sharded or too large."""
    if len(tensors) > MOST_TENSORS or any(type(t) not in (torch.nn.Parameter, torch.Tensor) for t in tensors):
        return None
    if any(hasattr(t, "_is_flat_param") or hasattr(t, "_fsdp_flattened") or hasattr(t, "ds_id") for t in tensors):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if sum(t.numel() for t in tensors) > MOST_ELEMENTS or any(t.layout is not torch.strided for t in tensors):
            return None
        return [[float(t.double().sum()), float(t.double().abs().sum())] for t in tensors]


def rates(optimizer: Any, number: int) -> None:
    """Report the learning rates with which an optimizer steps."""
    if _counts["rates"] >= MOST_RATES:
        return
    found = [float(group["lr"]) for group in optimizer.param_groups if isinstance(group.get("lr"), (int, float))]
    if found:
        _counts["rates"] += 1
        shapes = [list(p.shape) for group in optimizer.param_groups for p in group["params"][:20]]
        digest = zlib.crc32(repr(shapes).encode())
        channel().say("rates", optimizer=number, step=steps().count, rates=found, digest=digest, at=place())


def _watch_loading() -> None:
    """State that is loaded into a module although no key fits."""
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def loading(self: Any, state_dict: Any, strict: bool = True, *args: Any, **kwargs: Any) -> Any:
        at = place()
        result = load(self, state_dict, strict, *args, **kwargs)
        own, given = set(self.state_dict()), set(state_dict)
        if not strict and own and given and not own & given:
            channel().say("nothing_loaded", at=at, count=len(given), key=str(min(given)), wanted=str(min(own)))
        return result

    torch.nn.Module.load_state_dict = loading


def _watch_meshes() -> None:
    """Device meshes. `torch.distributed.tensor` is imported only where it is used, and needs a mesh."""
    try:
        from torch.distributed import device_mesh as module
    except ImportError:
        return
    original = module.DeviceMesh.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        _watch_replicated()
        original(self, *args, **kwargs)
        names = getattr(self, "mesh_dim_names", None)
        if names and _counts["meshes"] < MOST_MESHES:
            _counts["meshes"] += 1
            with torch._C.DisableTorchFunction():
                ranks = self.mesh.tolist()
            channel().say("mesh", names=list(names), mesh=ranks, at=place())

    module.DeviceMesh.__init__ = made


_watched: set[str] = set()


def _watch_replicated() -> None:
    """Local tensors that the script, or a parallel style, calls replicated."""
    if _watched:
        return
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:
        return
    _watched.add("replicated")
    original = DTensor.from_local

    @functools.wraps(original)
    def from_local(local: Any, device_mesh: Any = None, placements: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _counts["replicated"] < MOST_REPLICATED and device_mesh is not None and placements is not None:
            _say_replicated(local, device_mesh, placements)
        return original(local, device_mesh, placements, *args, **kwargs)

    DTensor.from_local = staticmethod(from_local)
    to_local = DTensor.to_local

    @functools.wraps(to_local)
    def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = to_local(self, *args, **kwargs)
        is_of_user_code = is_of_user(sys._getframe(1).f_code.co_filename)
        if is_of_user_code and any(each.is_partial() for each in self.placements):
            origins.part_taken(result, place())
        return result

    DTensor.to_local = taken


def _say_replicated(local: Any, mesh: Any, placements: Any) -> None:
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or not local.numel() or local.is_complex():
        return
    for dimension, placement in enumerate(placements):
        if type(placement).__name__ != "Replicate":
            continue
        ranks = dist.get_process_group_ranks(mesh.get_group(dimension))
        if len(ranks) < 2:
            continue
        with torch.no_grad(), torch._C.DisableTorchFunction():
            plain = local.detach().double()
            sums = [float(plain.sum()), float(plain.abs().sum())]
        _counts["replicated"] += 1
        at = frames_of_user()
        channel().say("replicated", at=at, ranks=sorted(ranks), sums=sums, shape=list(local.shape))
