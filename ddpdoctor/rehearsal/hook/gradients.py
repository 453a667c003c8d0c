"""What the ranks do to gradients between the backward pass and the optimizer step, measured with projections.

A projection is the inner product with a fixed vector. It is linear: the mean of the ranks' projections is that of the
averaged gradient. So the gradient that an optimizer uses can be compared with the average, however the script makes it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ddpdoctor.rehearsal.hook import origins
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import frames_of_user, place

__all__ = ["backward_done", "norm_before", "note", "used", "watch_parameters"]

MOST_PARAMETERS = 200
MOST_ELEMENTS = 1_000_000
"""Larger models are not measured: the report says so."""
COMPARED_STEPS = 4

MEANS = ("NllLossBackward", "MseLossBackward", "NllLoss2DBackward", "BinaryCrossEntropy", "SmoothL1Loss", "KlDiv")
"""Losses that are a mean unless they say otherwise (`_saved_reduction` 1)."""


class _Known:
    """One parameter: its vector, and the projection of the gradients that this rank computed since the last zero."""

    __slots__ = ("reference", "sum", "vector")

    def __init__(self, parameter: Any) -> None:
        self.reference = weakref.ref(parameter)
        generator = torch.Generator().manual_seed(parameter.numel())
        self.vector = torch.randn(parameter.numel(), generator=generator, dtype=torch.float64)
        self.sum = 0.0

    def project(self, gradient: Any) -> float:
        return float(gradient.detach().reshape(-1).double() @ self.vector)


_known: dict[int, _Known] = {}
_notes: set[str] = set()
"""What happened to gradients since the last step that makes their scale unknown."""
_state: dict[str, Any] = {"backwards": 0, "mean": None, "elements": 0, "norms": {}}


def note(what: str) -> None:
    """Gradients were clipped, or are scaled."""
    _notes.add(what)


def watch_parameters(parameters: list[Any]) -> None:
    """Measure the gradients of these parameters from now on."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for parameter in parameters:
            if id(parameter) in _known and _known[id(parameter)].reference() is parameter:
                continue
            if type(parameter) is not torch.nn.Parameter or not parameter.requires_grad or not parameter.is_leaf:
                continue
            if parameter.layout is not torch.strided or parameter.device.type != "cpu" or parameter.is_complex():
                continue
            _state["elements"] += parameter.numel()
            if len(_known) >= MOST_PARAMETERS or _state["elements"] > MOST_ELEMENTS or not parameter.numel():
                return
            known = _known[id(parameter)] = _Known(parameter)
            parameter.register_hook(_hook(known))


def _hook(known: _Known) -> Any:
    def computed(gradient: Any) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            parameter = known.reference()
            if parameter is None or gradient.layout is not torch.strided or type(gradient) is not torch.Tensor:
                return
            if parameter.grad is None or not bool(parameter.grad.any()):
                known.sum = 0.0
            elif parameter.grad.layout is torch.strided:
                origins.accumulated(parameter.grad)
            known.sum += known.project(gradient)

    return computed


def backward_done(roots: list[Any], parameters: list[Any]) -> None:
    """A backward pass ended. `parameters` are those of the optimizers."""
    _state["backwards"] += 1
    _state["mean"] = all(_is_mean(root) for root in roots) if roots else None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        _state["norms"] = norm_before(parameters)


def _is_mean(root: Any) -> bool:
    """Whether a loss is the mean over the samples of this rank, and nothing else."""
    node = root.grad_fn
    if node is None:
        return False
    name = type(node).__name__
    return name.startswith("MeanBackward") or (name.startswith(MEANS) and getattr(node, "_saved_reduction", None) == 1)


def norm_before(parameters: list[Any]) -> dict[int, float]:
    """The norms of the gradients of sharded parameters, of this rank's shards."""
    found: dict[int, float] = {}
    for parameter in parameters[:MOST_PARAMETERS]:
        local = _shard(parameter)
        if local is not None and local.numel():
            found[id(parameter)] = float(local.double().norm())
    return found


def _shard(parameter: Any) -> Any:
    """This rank's part of the gradient of a sharded parameter, None for other parameters."""
    gradient = parameter.grad
    if gradient is None:
        return None
    if type(gradient).__name__ == "DTensor":
        return gradient._local_tensor if type(gradient._local_tensor) is torch.Tensor else None
    return gradient if hasattr(parameter, "_is_flat_param") or hasattr(parameter, "_fsdp_flattened") else None


def used(optimizer: Any, number: int, step: int) -> None:
    """An optimizer step begins: report the gradients that it uses."""
    backwards, _state["backwards"] = _state["backwards"], 0
    notes, mean = sorted(_notes), _state["mean"]
    _notes.clear()
    if step >= COMPARED_STEPS:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        _say_shards(parameters, number, step)
        known: list[tuple[Any, _Known]] = [(p, _known[id(p)]) for p in parameters if id(p) in _known]
        known = [(p, each) for p, each in known if each.reference() is p]
        known = [(p, each) for p, each in known if p.grad is not None and type(p.grad) is torch.Tensor]
        known = [(p, each) for p, each in known if p.grad.layout is torch.strided]
        if not known:
            return
        channel().say(
            "gradients",
            optimizer=number,
            step=step,
            shapes=[list(p.shape) for p, _ in known],
            local=[each.sum for _, each in known],
            used=[each.project(p.grad) for p, each in known],
            norms=[float(p.grad.double().norm()) for p, _ in known],
            backwards=backwards,
            notes=notes,
            mean=mean,
            at=place(),
        )


def _say_shards(parameters: list[Any], number: int, step: int) -> None:
    """The factor by which this rank has scaled its shards of the gradients since the backward pass."""
    before, after = _state["norms"], norm_before(parameters)
    factors = [after[key] / before[key] for key in after if before.get(key, 0.0) > 1e-12]
    if factors and max(factors) - min(factors) <= 1e-3 * max(factors):
        channel().say("shards_scaled", optimizer=number, step=step, factor=factors[0], at=frames_of_user())
