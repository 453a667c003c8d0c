"""Training: wrapped models, backward passes, optimizer steps, data loaders, seeds, checkpoints."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import threading
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ddpdoctor.rehearsal.hook import (
    content,
    devices,
    gradients,
    origins,
    own_buffers,
    randomness,
    states,
    streams,
    variables,
)
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.collectives import calls, record, reduced, scaling, soft
from ddpdoctor.rehearsal.hook.ending import steps
from ddpdoctor.rehearsal.hook.places import place

__all__ = ["schedules", "unused_parameters", "watch"]

SHARDED = ("_is_flat_param", "_fsdp_flattened", "ds_id", "tensor_model_parallel")
"""Attributes that FSDP, DeepSpeed and Megatron give to parameters of which each rank has a part."""
MOST_ROWS = 64
MOST_BATCHES = 4
LISTED_EPOCHS = 2
LISTED_BATCHES = 12
"""The samples of the first batches of the first epochs are compared between ranks, epochs and workers."""
MOST_PARAMETERS = 400
MOST_ELEMENTS = 4_000_000
COMPARED_STEPS = 3
LATER_STEPS = (4, 8, 16, 32, 64, 128)
"""Steps of an optimizer after which parameters are compared once more."""
REGISTERED_STEPS = 200

_local = threading.local()
_pending: list[int] = []
"""The numbers of DDP's gradient synchronizations that the running backward pass has begun."""
_wrapped = devices.wrapped
_failed: list[tuple[list[str], Any]] = []
"""Of DDP models whose forward pass raised: the names of the parameters, in DDP's order, and the place of the construction."""
_alive: weakref.WeakSet[Any] = weakref.WeakSet()
"""The DDP models."""
_made: dict[int, Any] = {}
"""Where the first parameters were registered."""
_schedules: list[tuple[Any, int, Any]] = []
"""Schedulers with a fixed number of steps: a weak reference, the number, and the place."""
MOST_MADE = 5000
INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


def watch() -> None:
    """Replace what training calls."""
    _watch_ddp()
    _watch_modules()
    _watch_samplers()
    _watch_gradients()
    _watch_backward()
    _watch_optimizers()
    _watch_loaders()
    _watch_seeds()
    _watch_files()
    _watch_splits()
    _watch_schedulers()
    _watch_evaluation()
    _watch_data_parallel()
    states.watch()
    streams.watch()
    own_buffers.watch()


def _watch_ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel

    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward

    @functools.wraps(init)
    def wrapped(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        at = place()
        parameters = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        places = sorted({str(found) for _, p in parameters if (found := devices.device_of(p)) is not None})
        listed = None if device_ids is None else [_index(each) for each in device_ids]
        is_of_world = calls().name_of(kwargs.get("process_group")) == "world"
        channel().say(
            "ddp",
            at=at,
            device_ids=listed,
            devices=places,
            backend=calls().world_backend,
            is_of_world=is_of_world,
            broadcasts=kwargs.get("broadcast_buffers", args[1] if len(args) > 1 else None) is not False,
        )
        if listed and places and all(each == "cpu" for each in places):
            raise ValueError(
                "DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device "
                f"GPU modules or CPU modules, but got device_ids {device_ids}, output_device {output_device}, and module "
                f"parameters {{device(type='cpu')}}."
            )
        _wrapped.update({id(p): n for n, p in parameters})
        made = ([n for n, _ in parameters], at)
        module.register_forward_pre_hook(_reached)
        shapes = [[n, list(p.shape), str(p.dtype)] for n, p in parameters]
        digest = zlib.crc32(repr([each[1:] for each in shapes]).encode())
        group = kwargs.get("process_group")

        def construct() -> None:
            init(self, module, None, None, *args, **kwargs)

        first = [f"{n}{shape}" for n, shape, _ in shapes[:MOST_PARAMETERS]]
        record("DistributedDataParallel", group, construct, at=at, digest=digest, parameters=len(shapes), named=first)
        _local.loaded = None
        self._ddpdoctor_made = made
        self._ddpdoctor_device = devices.as_device(listed[0]) if listed and isinstance(listed[0], int) else None
        _alive.add(self)
        self._ddpdoctor_sums = (at, _sums([p for _, p in parameters]))

    @functools.wraps(forward)
    def passed(self: Any, *args: Any, **kwargs: Any) -> Any:
        at = place()
        _check_unchanged(self)
        own_buffers.compare(self)
        args, kwargs = _on_device((args, kwargs), self._ddpdoctor_device)
        _local.inside = True
        has_buffers = getattr(self, "will_sync_module_buffers", lambda: False)()
        run = functools.partial(forward, self, *args, **kwargs)
        group = self.process_group
        try:
            output = record("forward", group, run, at=at) if has_buffers else soft("forward", group, run, at)
        except RuntimeError:
            _failed.append(self._ddpdoctor_made)
            raise
        finally:
            _local.inside = False
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            begun: list[int] = []

            def begin(gradient: Any) -> None:
                if not begun:
                    if not self.require_backward_grad_sync:
                        channel().say("late_no_sync", at=at, backward=place())
                    begun.append(_begin_backward(group))

            for tensor in devices.leaves(output):
                if tensor.requires_grad:
                    tensor.register_hook(begin)
        return output

    DistributedDataParallel.__init__ = wrapped
    DistributedDataParallel.forward = passed
    _watch_join(DistributedDataParallel)


def _on_device(inputs: Any, device: Any) -> Any:
    """The inputs as DDP passes them on: with `device_ids` it moves them to that device."""
    if device is None:
        return inputs
    return tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, inputs)


def _check_unchanged(model: Any) -> None:
    """Report parameters that were changed between the construction of DDP and its first forward pass."""
    at, sums = getattr(model, "_ddpdoctor_sums", (None, None))
    if at is None:
        return
    model._ddpdoctor_sums = (None, None)
    if sums is not None and sums != _sums([p for p in model.module.parameters() if p.requires_grad]):
        channel().say("changed_after_wrap", at=at, loaded=getattr(_local, "loaded", None) or [])


def _sums(parameters: list[Any]) -> list[float] | None:
    """A sum for each parameter, None if there are too many."""
    if len(parameters) > MOST_PARAMETERS:
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if (
            any(type(p) is not torch.nn.Parameter for p in parameters)
            or sum(p.numel() for p in parameters) > MOST_ELEMENTS
        ):
            return None
        return [float(p.double().abs().sum()) for p in parameters]


def unused_parameters(text: str) -> dict[str, Any]:
    """What is known about parameters of a DDP model that got no gradient, from the exception's text."""
    found = INDICES.search(text)
    if not _failed or "finished reduction in the prior iteration" not in text:
        return {}
    names, at = _failed[-1]
    indices = [int(each) for each in found[1].split()] if found is not None else []
    missing = [names[index] for index in indices if index < len(names)]
    changed = [where for name, where in devices.frozen if name in missing or not missing]
    return {"names": missing, "wrapped_at": at, "frozen_at": changed[0] if changed else []}


def schedules() -> list[list[Any]]:
    """The schedulers that have a fixed number of steps: that number, the steps made, and the place."""
    found = []
    for reference, total, at in _schedules:
        scheduler = reference()
        if scheduler is not None:
            found.append([total, int(scheduler.last_epoch), at])
    return found


def _watch_modules() -> None:
    """Where parameters come from."""
    register = torch.nn.Module.register_parameter

    @functools.wraps(register)
    def registered(self: Any, name: str, param: Any) -> None:
        if param is not None and len(_made) < MOST_MADE:
            _made[id(param)] = place()
        register(self, name, param)

    torch.nn.Module.register_parameter = registered
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def loading(self: Any, *args: Any, **kwargs: Any) -> Any:
        _local.loaded = place()
        return load(self, *args, **kwargs)

    torch.nn.Module.load_state_dict = loading


def _watch_gradients() -> None:
    """Gradients that are unscaled, and norms of gradients."""
    import torch.nn.utils as module

    scaler: Any = torch.amp.GradScaler
    unscale, clip = scaler.unscale_, module.clip_grad_norm_

    @functools.wraps(unscale)
    def unscaling(self: Any, optimizer: Any) -> Any:
        scaling["unscaled"] = place()
        gradients.note("unscaled")
        return unscale(self, optimizer)

    @functools.wraps(clip)
    def clipping(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(hasattr(p, name) for p in listed for name in ("_is_flat_param", "_fsdp_flattened")):
            channel().say("clipped_shards", at=place())
        gradients.note("clipped")
        return clip(listed, *args, **kwargs)

    scaler.unscale_ = unscaling
    module.clip_grad_norm_ = module.clip_grad.clip_grad_norm_ = clipping


def _watch_samplers() -> None:
    """Where samplers are made."""
    from torch.utils.data.distributed import DistributedSampler

    init = DistributedSampler.__init__

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        self._ddpdoctor_at = place()
        init(self, *args, **kwargs)

    DistributedSampler.__init__ = made
    set_epoch = DistributedSampler.set_epoch

    @functools.wraps(set_epoch)
    def setting(self: Any, epoch: int) -> None:
        channel().say("set_epoch", epoch=int(epoch), step=steps().count, at=place())
        set_epoch(self, epoch)

    DistributedSampler.set_epoch = setting


def _reached(module: Any, _: Any) -> None:
    """A DDP model's own module is called: by DDP, or by the script, which then synchronizes nothing."""
    if not getattr(_local, "inside", False) and torch.is_grad_enabled() and module.training:
        channel().say("bypassed", at=place())


def _watch_join(ddp: Any) -> None:
    """Inside of `join`, ranks may call different numbers of collectives."""
    from torch.distributed.algorithms.join import Join

    enter, leave = Join.__enter__, Join.__exit__

    def begin(self: Any) -> Any:
        channel().say("join", on=True, at=place(), call=calls().count)
        return enter(self)

    def end(self: Any, *args: Any) -> Any:
        result = leave(self, *args)
        channel().say("join", on=False, at=place(), call=calls().count)
        return result

    Join.__enter__, Join.__exit__ = begin, end


def _index(device: Any) -> Any:
    if isinstance(device, int):
        return device
    found = torch.device(device)
    return found.index if found.index is not None else str(found)


def _begin_backward(group: Any) -> int:
    steps().check()
    name = calls().name_of(group) or "world"
    number = calls().number()
    if name == "world":
        variables.look()
    channel().say("call", n=number, op="backward", g=name, at=place(), step=steps().count)
    _pending.append(number)
    _local.synchronized = True
    return number


def _watch_backward() -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        steps().refuse()
        roots = devices.leaves(args[:1])
        counts = [each for each in map(origins.origin_of, roots) if each is not None and each.by_sum]
        for root in devices.leaves(args[:1]) if reduced else ():
            found = reduced.get(id(root))
            if found is not None:
                channel().say("in_graph", what=found[0], at=found[1], backward=place())
        reduced.clear()
        result = original(*args, **kwargs)
        while _pending:
            channel().say("ret", n=_pending.pop())
        if not getattr(_local, "synchronized", False):
            _local.unsynchronized = place()
        elif counts and counts[0].degree < 0:
            channel().say("divided_by_sum", at=list(counts[0].by_sum), backward=place())
        gradients.backward_done(roots, _optimized())
        steps().backward_done()
        return result

    torch.autograd.backward = backward


_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


def _optimized() -> list[Any]:
    """The parameters of all optimizers."""
    return [p for each in list(_optimizers) for group in getattr(each, "param_groups", ()) for p in group["params"]]


def _watch_optimizers() -> None:
    from torch.optim import optimizer as module

    register = getattr(module, "register_optimizer_step_post_hook", None)
    known: dict[int, int] = {}

    made: dict[int, Any] = {}
    init = module.Optimizer.__init__

    @functools.wraps(init)
    def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
        made[id(self)] = place()
        init(self, *args, **kwargs)
        _optimizers.add(self)
        gradients.watch_parameters([p for each in self.param_groups for p in each["params"]])
        if dist.is_available() and dist.is_initialized():
            _fingerprint(self, known.setdefault(id(self), len(known)), "initial")

    module.Optimizer.__init__ = initialized
    load = module.Optimizer.load_state_dict

    @functools.wraps(load)
    def loading(self: Any, *args: Any, **kwargs: Any) -> Any:
        channel().say("optimizer_loaded", at=place(), step=steps().count)
        return load(self, *args, **kwargs)

    module.Optimizer.load_state_dict = loading

    def stepped(optimizer: Any, *_: Any) -> None:
        devices.averaged.clear()
        scaling["unscaled"] = None
        parameters = [p for each in optimizer.param_groups for p in each["params"]]
        if steps().backwards and parameters and all(p.grad is None for p in parameters):
            channel().say("idle", at=made.get(id(optimizer), []), stepped=place())
        if type(optimizer).__module__.startswith("torch.distributed"):
            return
        number = known.setdefault(id(optimizer), len(known))
        _check_synchronized(optimizer)
        if steps().optimizer_steps < REGISTERED_STEPS:
            _check_registered({id(p) for p in parameters if p.grad is not None})
        made_steps = optimizer._ddpdoctor_steps = getattr(optimizer, "_ddpdoctor_steps", 0) + 1
        is_compared = made_steps <= COMPARED_STEPS or made_steps in LATER_STEPS
        if is_compared and dist.is_available() and dist.is_initialized():
            _fingerprint(optimizer, number)
        streams.stepped()
        steps().optimizer_done()

    def begun(optimizer: Any, *_: Any) -> None:
        steps().refuse()
        if type(optimizer).__module__.startswith("torch.distributed"):
            return
        number = known.setdefault(id(optimizer), len(known))
        gradients.used(optimizer, number, steps().optimizer_steps)
        states.rates(optimizer, number)

    if register is not None:
        register(stepped)
        module.register_optimizer_step_pre_hook(begun)


def _check_registered(trained: set[int]) -> None:
    """Report trained parameters of a DDP model that were not there, or were frozen, when it was constructed."""
    for model in list(_alive):
        names = [n for n, p in model.module.named_parameters() if id(p) in trained and id(p) not in _wrapped]
        ignored = getattr(model, "parameters_to_ignore", None) or ()
        names = [name for name in names if name not in ignored]
        if names and getattr(model, "_ddpdoctor_told", None) is None:
            model._ddpdoctor_told = True
            channel().say("unregistered", names=names[:20], at=model._ddpdoctor_made[1])


def _check_synchronized(optimizer: Any) -> None:
    """Report a step with gradients of a DDP model that no backward pass has synchronized."""
    was, _local.synchronized = getattr(_local, "synchronized", False), False
    without, _local.unsynchronized = getattr(_local, "unsynchronized", None), None
    if was or without is None or not dist.is_initialized() or dist.get_world_size() < 2:
        return
    if any(id(p) in _wrapped and p.grad is not None for each in optimizer.param_groups for p in each["params"]):
        channel().say("unsynchronized", at=without, stepped=place())


def _fingerprint(optimizer: Any, number: int, kind: str = "params") -> None:
    """Sums of the parameters, to be compared between ranks. Sharded parameters are not compared."""
    parameters = [p for each in optimizer.param_groups for p in each["params"]]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        plain = [
            p
            for p in parameters
            if type(p) in (torch.nn.Parameter, torch.Tensor) and not any(hasattr(p, name) for name in SHARDED)
        ]
        if (
            len(plain) < len(parameters)
            or len(plain) > MOST_PARAMETERS
            or sum(p.numel() for p in plain) > MOST_ELEMENTS
        ):
            return
        if any(type(p).__name__ != "Parameter" and not p.is_leaf for p in plain):
            return
        sums = [[float(p.double().sum()), float(p.double().abs().sum())] for p in plain]
        moved = [p.grad is not None for p in plain]
    names = [_wrapped.get(id(p)) for p in plain]
    first: Any = next((_made[id(p)] for p in plain if id(p) in _made), [])
    channel().say(
        kind,
        optimizer=number,
        made=first,
        step=steps().count,
        sums=sums,
        names=names,
        shapes=[list(p.shape) for p in plain],
        has_grad=moved,
        wrapped=sum(name is not None for name in names),
        at=place(),
    )


class _Batches:
    """The iterator of a loader, which counts and ends after the first batches of an epoch if the user asked for it."""

    def __init__(self, inner: Any, number: int, iteration: int, limit: int | None, at: Any) -> None:
        self._inner, self._number, self._iteration, self._limit, self._at = inner, number, iteration, limit, at
        self._count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if self._limit is not None and self._count >= self._limit:
            channel().say("cut", loader=self._number, batches=self._count)
            origins.batches_end(self._number)
            raise StopIteration
        try:
            batch = next(self._inner)
        except StopIteration:
            channel().say(
                "epoch_end",
                loader=self._number,
                iteration=self._iteration,
                batches=self._count,
                step=steps().count,
            )
            origins.batches_end(self._number)
            raise
        origins.batch_begins(self._number)
        self._count += 1
        if self._iteration < LISTED_EPOCHS and self._count <= LISTED_BATCHES:
            listed = _rows(batch)
            channel().say("rows", loader=self._number, iteration=self._iteration, count=self._count, rows=listed)
        if self._iteration == 0 and self._count <= MOST_BATCHES:
            channel().say(
                "batch", loader=self._number, count=self._count, rows=_rows(batch), states=randomness.states()
            )
        return batch


def _rows(batch: Any) -> list[int]:
    """A number for each sample of a batch, from the bytes of its tensors."""
    tensors = [t for t in devices.leaves(batch) if t.dim() > 0]
    if not tensors:
        return []
    with torch.no_grad(), torch._C.DisableTorchFunction():
        size = tensors[0].shape[0]
        same = [t for t in tensors if t.shape[0] == size and t.device.type == "cpu" and t.layout is torch.strided]
        rows = []
        for row in range(min(size, MOST_ROWS)):
            digest = 0
            for t in same[:4]:
                digest = zlib.crc32(t[row].contiguous().reshape(-1)[:4096].view(torch.uint8).numpy().tobytes(), digest)
            rows.append(digest)
    return rows


def _watch_loaders() -> None:
    from torch.utils.data import DataLoader

    init, iterate, length = DataLoader.__init__, DataLoader.__iter__, DataLoader.__len__
    numbers = itertools.count()
    limit = channel().config.get("epoch_steps")

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        init(self, *args, **kwargs)
        number = next(numbers)
        object.__setattr__(self, "_ddpdoctor_number", number)
        sampler = getattr(self, "sampler", None)
        batch_sampler = getattr(self, "batch_sampler", None)
        inner = getattr(batch_sampler, "sampler", None)
        channel().say(
            "loader",
            loader=number,
            at=place(),
            sampler=_kind(sampler),
            batch_sampler=_kind(batch_sampler),
            inner=_kind(inner),
            dataset=_kind(self.dataset),
            size=_size(self.dataset),
            batches=_batches(self),
            workers=self.num_workers,
            shuffles=getattr(sampler, "shuffle", None),
            replicas=getattr(sampler, "num_replicas", None),
            shard=getattr(sampler, "rank", None),
            seed=getattr(sampler, "seed", None),
            sampled_at=getattr(sampler, "_ddpdoctor_at", []),
            drop_last=getattr(self, "drop_last", None),
            sampler_drops=getattr(sampler, "drop_last", None),
            batch_size=self.batch_size,
            drawn=_size(sampler),
            content=content.digest(self.dataset),
        )
        if self.num_workers:
            self.worker_init_fn = streams.Worker(number, self.worker_init_fn)

    def _batches(self: Any) -> int | None:
        try:
            return int(length(self))
        except (TypeError, NotImplementedError, AttributeError):
            return None

    @functools.wraps(iterate)
    def begun(self: Any) -> Any:
        number = getattr(self, "_ddpdoctor_number", -1)
        is_training = torch.is_grad_enabled() and not _is_evaluating()
        at = place()
        iteration = getattr(self, "_ddpdoctor_iteration", 0)
        object.__setattr__(self, "_ddpdoctor_iteration", iteration + 1)
        sampler = getattr(self, "sampler", None)
        random_state = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        channel().say(
            "epoch",
            loader=number,
            iteration=iteration,
            epoch=getattr(sampler, "epoch", None),
            at=at,
            rng=random_state,
            is_training=is_training,
            step=steps().count,
        )
        if is_training:
            randomness.begin()
        return _Batches(iterate(self), number, iteration, limit, at)

    @functools.wraps(length)
    def measured(self: Any) -> int:
        whole = length(self)
        return int(whole if limit is None else min(whole, limit))

    DataLoader.__init__, DataLoader.__iter__, DataLoader.__len__ = made, begun, measured


def _is_evaluating() -> bool:
    """Whether the model that is trained was switched to evaluation last; a frozen teacher beside it does not count."""
    reference = getattr(_local, "evaluated_module", None)
    model = None if reference is None else reference()
    if model is None or model.training:
        return False
    return any(id(p) in _wrapped if _wrapped else p.requires_grad for p in model.parameters())


def _kind(value: Any) -> str | None:
    return None if value is None else f"{type(value).__module__}.{type(value).__qualname__}"


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _watch_seeds() -> None:
    import random

    def seeding(what: str, original: Any) -> Any:
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            value = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(value, int):
                channel().say("seed", what=what, seed=value, at=place(), step=steps().count)
            return original(*args, **kwargs)

        return seed

    torch.manual_seed = torch.random.manual_seed = seeding("torch", torch.manual_seed)
    random.seed = seeding("random", random.seed)


def _watch_files() -> None:
    import torch.serialization as module

    save, load = torch.save, torch.load

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is not None:
            kept = sorted({str(found) for t in devices.leaves(obj) if (found := devices.device_of(t)) is not None})
            channel().say("save", path=path, at=place(), call=calls().count, devices=kept)
        result = save(origins.plain(obj), f, *args, **kwargs)
        if path is not None:
            channel().say("saved", path=path, call=calls().count)
        return result

    @functools.wraps(load)
    def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is not None:
            channel().say(
                "load",
                path=path,
                at=place(),
                call=calls().count,
                map_location=map_location is not None,
                exists=os.path.exists(path),
                device=devices.current() if torch.cuda.is_available() else None,
            )
        target = None
        if devices.is_cuda(map_location):
            target, map_location = devices.as_device(map_location), "cpu"
        elif isinstance(map_location, dict):
            named = next((v for v in map_location.values() if devices.is_cuda(v)), None)
            target, map_location = (devices.as_device(named), "cpu") if named is not None else (None, map_location)
        result = load(f, map_location, *args, **kwargs)
        if target is not None:
            for tensor in devices.leaves(result):
                devices.mark(tensor, target)
        return result

    torch.save = module.save = saving
    torch.load = module.load = loading


def _path(file: Any) -> str | None:
    if isinstance(file, (str, os.PathLike)):
        return os.path.abspath(os.fspath(file))
    name = getattr(file, "name", None)
    return os.path.abspath(name) if isinstance(name, str) else None


def _watch_splits() -> None:
    import torch.utils.data as data

    original = data.random_split

    @functools.wraps(original)
    def split(*args: Any, **kwargs: Any) -> Any:
        parts = original(*args, **kwargs)
        digest = zlib.crc32(repr([list(part.indices) for part in parts]).encode())
        channel().say("split", digest=digest, at=place())
        return parts

    data.random_split = data.dataset.random_split = split


def _watch_schedulers() -> None:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    original = ReduceLROnPlateau.step

    @functools.wraps(original)
    def step(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        channel().say("plateau", metric=float(metrics), at=place())
        return original(self, metrics, *args, **kwargs)

    ReduceLROnPlateau.step = step
    for name, attribute in (("OneCycleLR", "total_steps"), ("CosineAnnealingLR", "T_max"), ("LinearLR", "total_iters")):
        _watch_schedule(name, attribute)


def _watch_schedule(name: str, attribute: str) -> None:
    """A scheduler with a fixed number of steps."""
    import torch.optim.lr_scheduler as module

    kind = getattr(module, name, None)
    if kind is None:
        return
    init = kind.__init__

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        total = getattr(self, attribute, None)
        if isinstance(total, (int, float)):
            at = place()
            _schedules.append((weakref.ref(self), int(total), at))
            per_epoch = kwargs.get("steps_per_epoch")
            epochs = variables.named("epoch", sys._getframe(1))
            channel().say("schedule", total=int(total), per_epoch=per_epoch, epochs=epochs, at=at)

    kind.__init__ = made


def _watch_evaluation() -> None:
    original = torch.nn.Module.eval

    @functools.wraps(original)
    def evaluate(self: Any) -> Any:
        _local.evaluated_module = weakref.ref(self)
        if not getattr(_local, "evaluated", False):
            _local.evaluated = True
            channel().say("eval", at=place())
        return original(self)

    torch.nn.Module.eval = evaluate


def _watch_data_parallel() -> None:
    from torch.nn import DataParallel

    original = DataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        count = torch.cuda.device_count() if device_ids is None else len(device_ids)
        channel().say("data_parallel", count=count, at=place())
        original(self, module, [devices.current()], *args, **kwargs)

    DataParallel.__init__ = init
