"""Imagined CUDA devices: tensors stay on the CPU and remember the device that the script asked for.

A TorchFunctionMode (torch 2.0 and later) sees every call of torch's Python interface. It replaces CUDA devices in arguments by
the CPU, and marks results with the device that they would be on. A tensor without a mark has an unknown device.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ddpdoctor.rehearsal.hook import origins, own_buffers
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import is_called_by_library, place
from ddpdoctor.rehearsal.hook.randomness import DRAWS, drawn

__all__ = ["ImaginedDevices", "as_device", "begin_process", "current", "device_of", "is_cuda", "mark", "select"]

MARK = "_ddpdoctor_device"
FACTORIES = frozenset(
    (
        "zeros",
        "ones",
        "empty",
        "full",
        "rand",
        "randn",
        "randint",
        "randperm",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "tensor",
        "as_tensor",
        "asarray",
        "from_numpy",
        "scalar_tensor",
        "empty_strided",
        "normal",
    )
)
"""Functions that make a tensor on the CPU unless they are given a device."""
SAME_DEVICE = frozenset(
    (
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "embedding",
        "cross_entropy",
        "mse_loss",
        "nll_loss",
        "l1_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "layer_norm",
        "batch_norm",
        "cat",
        "stack",
        "add",
        "sub",
        "mul",
        "div",
        "__add__",
        "__sub__",
        "__mul__",
        "__truediv__",
        "__matmul__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "scaled_dot_product_attention",
        "__radd__",
        "__rmul__",
        "add_",
        "mul_",
        "sub_",
    )
)
"""Functions whose tensors must all be on one device; a tensor without dimensions may be on the CPU."""

_local = threading.local()
_count = int(channel().config.get("gpus", 0))
_reported: set[tuple[object, ...]] = set()


_use = {"pid": 0}
"""The process that used a device first: CUDA does not work in a process that was forked after that."""


def use() -> None:
    """A device is used.

    Raises:
        RuntimeError: this process was forked from one that had used CUDA.
    """
    pid = os.getpid()
    if _use["pid"] == 0:
        _use["pid"] = pid
    elif _use["pid"] != pid:
        channel().say("bad_fork", at=place())
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
            "'spawn' start method"
        )


def begin_process() -> None:
    """This process is a new rank: what its parent imported has used no device of the rank."""
    _use["pid"] = 0


def current() -> int:
    """The index of the current device of this thread; a new thread begins with device 0."""
    return int(getattr(_local, "device", 0))


def select(device: Any) -> None:
    """Make a device current.

    Raises:
        RuntimeError: the node has no such device.
    """
    index = device if isinstance(device, int) else torch.device(device).index
    if index is None or index < 0:
        return
    _checked(index)
    _local.device = index


def _checked(index: int) -> int:
    use()
    if index >= _count:
        channel().say("ordinal", index=index, count=_count, at=place())
        error = getattr(torch, "AcceleratorError", RuntimeError)
        raise error(
            "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call, "
            "so the stacktrace below might be incorrect."
        )
    return index


def is_cuda(device: Any) -> bool:
    """Whether this names a CUDA device: `"cuda:1"`, torch.device("cuda") or a number."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return bool(device.partition(":")[0] == "cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def as_device(device: Any) -> torch.device:
    """The device with an index: `cuda` is the current one."""
    if isinstance(device, (int, str)) and device != "cuda":
        named = device if isinstance(device, int) else device.partition(":")[2]
        if isinstance(named, int) or named.isdecimal():
            _name(int(named))
    if isinstance(device, int):
        return torch.device("cuda", _checked(device))
    found = torch.device(device)
    if found.type != "cuda":
        return found
    return torch.device("cuda", _checked(current() if found.index is None else found.index))


CPU = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter)


def mark(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Remember the device of a tensor."""
    if device is not None:
        try:
            setattr(tensor, MARK, device)
        except (AttributeError, RuntimeError):
            return tensor  # a subclass without attributes: its device stays unknown
    return tensor


def device_of(tensor: Any) -> torch.device | None:
    """The device that a tensor would be on, None if unknown."""
    found = tensor.__dict__.get(MARK) if hasattr(tensor, "__dict__") else None
    if found is None and type(tensor) not in PLAIN:
        local = getattr(tensor, "_local_tensor", None)  # a DTensor is where its part of this rank is
        return None if local is None or local is tensor else device_of(local)
    return found if isinstance(found, torch.device) else None


def _tensors(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def _marked(result: Any, device: torch.device | None) -> Any:
    if device is None:
        return result
    if isinstance(result, torch.Tensor):
        return mark(result, device)
    if isinstance(result, (tuple, list)):
        for each in result:
            if isinstance(each, torch.Tensor):
                mark(each, device)
    return result


class ImaginedDevices(TorchFunctionMode):  # type: ignore[misc]
    """Replaces CUDA devices in every call, and marks what it returns."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        special = _SPECIAL.get(func)
        name = getattr(func, "__name__", "")
        if special is not None:
            result = special(func, args, kwargs)
            if name in origins.FOLLOWED:
                origins.follow(name, args, result)
            return result
        given = kwargs.get("device")
        wanted = None
        if given is not None and not isinstance(given, bool):
            if is_cuda(given):
                wanted = as_device(given)
                kwargs = {**kwargs, "device": CPU}
            elif torch.device(given).type == "cpu":
                wanted = CPU
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if _in_flight:
            _check_in_flight(name, args)
        tensors = _tensors(args) if args else []
        result = func(*args, **kwargs)
        if name in DRAWS:
            drawn(name, result)
        elif name in DIVISIONS and wrapped | averaged:
            _check_division(tensors, args)
        if name in origins.FOLLOWED:
            origins.follow(name, args, result)
            if name in own_buffers.WRITES and args:
                own_buffers.written(name, args[0])
        if wanted is None:
            if name in FACTORIES and not tensors:
                wanted = CPU if given is None else None  # on the meta device, for example
            else:
                wanted = _common(tensors, name)
        return _marked(result, wanted)


def _common(tensors: list[torch.Tensor], name: str) -> torch.device | None:
    """The device of a result: that of the arguments. Arguments on two devices are recorded where torch refuses them."""
    found: torch.device | None = None
    other: torch.device | None = None
    for each in tensors:
        device = each.__dict__.get(MARK)
        if device is None or (device.type == "cpu" and each.dim() == 0):
            continue
        if found is None:
            found = device
        elif device != found:
            other = device
    if found is None:
        return CPU if tensors and all(t.__dict__.get(MARK) is not None for t in tensors) else None
    if other is not None:
        if name in SAME_DEVICE:
            _report("devices", operation=name, devices=sorted((str(found), str(other))))
        return found if found.type == "cuda" else other
    return found


def _report(kind: str, **fields: Any) -> None:
    at = place()
    key = (kind, tuple(at[:1]), *(str(value) for value in fields.values()))
    if key not in _reported and len(_reported) < 200:
        _reported.add(key)
        channel().say(kind, at=at, **fields)


_in_flight: dict[int, tuple[str, list[Any]]] = {}
"""The data pointers of tensors of asynchronous collectives that were not waited for, with the operation and its place."""
_READS_NOTHING = frozenset(
    ("__get__", "__set__", "size", "dim", "numel", "data_ptr", "element_size", "is_floating_point", "stride", "wait")
)


def begin_flight(tensors: list[torch.Tensor], operation: str, at: list[Any]) -> list[int]:
    """Remember tensors that an asynchronous collective still uses. Returns their keys."""
    with torch._C.DisableTorchFunction():
        keys = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    for key in keys:
        _in_flight[key] = (operation, at)
    return keys


def end_flight(keys: list[int]) -> None:
    """Forget these tensors."""
    for key in keys:
        _in_flight.pop(key, None)


def clear_flight() -> None:
    """Forget all tensors: a synchronization of the device orders what follows."""
    _in_flight.clear()


def _check_in_flight(name: str, args: Any) -> None:
    if name in _READS_NOTHING:
        return
    for tensor in _tensors(args):
        with torch._C.DisableTorchFunction():
            found = (
                _in_flight.get(tensor.data_ptr())
                if tensor.layout is torch.strided and tensor.device.type == "cpu"
                else None
            )
        if found is not None and not is_called_by_library():
            _report("early_read", operation=found[0], used=name, started=found[1])


def _get_device(func: Any, args: Any, kwargs: Any) -> Any:
    found = device_of(args[0])
    return func(*args, **kwargs) if found is None else found


def _get_is_cuda(func: Any, args: Any, kwargs: Any) -> Any:
    found = device_of(args[0])
    return func(*args, **kwargs) if found is None else found.type == "cuda"


def _get_is_cpu(func: Any, args: Any, kwargs: Any) -> Any:
    found = device_of(args[0])
    return func(*args, **kwargs) if found is None else found.type == "cpu"


def _get_index(func: Any, args: Any, kwargs: Any) -> Any:
    found = device_of(args[0])
    return func(*args, **kwargs) if found is None or found.type != "cuda" else found.index


def _get_of_owner(func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    if isinstance(result, torch.Tensor) and device_of(result) is None:
        mark(result, device_of(args[0]))
    return result


def _set_data(func: Any, args: Any, kwargs: Any) -> Any:
    before, after = device_of(args[0]), device_of(args[1]) if len(args) > 1 else None
    if id(args[0]) in wrapped and before is not None and after is not None and before.type != after.type:
        _report("moved_after_wrap", before=str(before), after=str(after))
    result = func(*args, **kwargs)
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        mark(args[0], device_of(args[1]))
    return result


averaged: dict[int, list[Any]] = {}
"""The data pointers of tensors that a collective has averaged since the last optimizer step, with its place."""
DIVISIONS = frozenset(("div", "div_", "__truediv__", "__itruediv__", "__idiv__", "true_divide"))


def _check_division(tensors: list[torch.Tensor], args: Any) -> None:
    """Report a loss that is divided, and an average that is divided by the number of ranks again."""
    divisor = args[1] if len(args) > 1 else None
    if not tensors or not isinstance(divisor, (int, float)) or divisor < 2:
        return
    with torch._C.DisableTorchFunction():
        is_strided = tensors[0].layout is torch.strided
        found = averaged.get(tensors[0].data_ptr()) if is_strided and tensors[0].numel() > 1 else None
        is_loss = tensors[0].numel() == 1 and tensors[0].requires_grad
    if found is not None and torch.distributed.is_initialized() and divisor == torch.distributed.get_world_size():
        _report("averaged_twice", averaged_at=found)
    elif is_loss and wrapped:
        _report("loss_divided", divisor=float(divisor))


wrapped: dict[int, str] = {}
"""The ids of parameters of DDP modules, with their names."""
frozen: list[tuple[str, list[Any]]] = []
"""Parameters whose requires_grad was changed after DDP had wrapped them, with the place."""


def _set_requires_grad(func: Any, args: Any, kwargs: Any) -> Any:
    name = wrapped.get(id(args[0]))
    if name is not None and len(frozen) < 100:
        frozen.append((name, place()))
    return func(*args, **kwargs)


def _moved(tensor: torch.Tensor, device: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
    """The tensor on another device: a copy, unless it is there already."""
    if device_of(tensor) == device and not kwargs.get("copy"):
        return mark(func(tensor, *args, **kwargs), device)
    before = tensor
    result = func(tensor, *args, **{k: v for k, v in kwargs.items() if k != "non_blocking"})
    if result is before:
        result = before.clone()
    return mark(result, device)


def _to(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, rest = args[0], list(args[1:])
    if _in_flight:
        _check_in_flight("to", args)
    wanted = None
    if rest and isinstance(rest[0], torch.Tensor):
        wanted = device_of(rest[0])
    elif rest and not isinstance(rest[0], torch.dtype) and rest[0] is not None:
        wanted = as_device(rest[0]) if is_cuda(rest[0]) else torch.device(rest[0])
        rest[0] = CPU if wanted.type == "cuda" else rest[0]
    elif kwargs.get("device") is not None:
        given = kwargs["device"]
        wanted = as_device(given) if is_cuda(given) else torch.device(given)
        if wanted.type == "cuda":
            kwargs = {**kwargs, "device": CPU}
    elif isinstance(kwargs.get("other"), torch.Tensor):
        wanted = device_of(kwargs["other"])
    if wanted is None or wanted.type not in ("cuda", "cpu"):
        result = func(tensor, *rest, **kwargs)
        return result if wanted is not None else _marked(result, device_of(tensor))
    return _moved(tensor, wanted, func, rest, kwargs)


def _cuda(func: Any, args: Any, kwargs: Any) -> Any:
    given = args[1] if len(args) > 1 else kwargs.get("device")
    wanted = as_device("cuda" if given is None else given)
    return _moved(args[0], wanted, lambda tensor: tensor, (), {})


def _cpu(func: Any, args: Any, kwargs: Any) -> Any:
    return _moved(args[0], CPU, lambda tensor: tensor, (), {})


def _same(func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _type(func: Any, args: Any, kwargs: Any) -> Any:
    given = args[1] if len(args) > 1 else kwargs.get("dtype")
    if given is None:
        found, text = device_of(args[0]), func(*args, **kwargs)
        return text.replace("torch.", "torch.cuda.", 1) if found is not None and found.type == "cuda" else text
    if isinstance(given, str) and given.startswith("torch.cuda."):
        return mark(func(args[0], given.replace("torch.cuda.", "torch.")), as_device("cuda"))
    return _marked(func(*args, **kwargs), device_of(args[0]))


def _parse_to(func: Any, args: Any, kwargs: Any) -> Any:
    """`module.to(1)`: the number of a device."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (as_device(args[0]), *args[1:])
    elif isinstance(kwargs.get("device"), int):
        kwargs = {**kwargs, "device": as_device(kwargs["device"])}
    return func(*args, **kwargs)


def _plain(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


_T = torch.Tensor
_SPECIAL: dict[Any, Any] = {
    _T.device.__get__: _get_device,
    _T.is_cuda.__get__: _get_is_cuda,
    _T.is_cpu.__get__: _get_is_cpu,
    _T.get_device: _get_index,
    _T.grad.__get__: _get_of_owner,
    _T.data.__get__: _get_of_owner,
    _T.data.__set__: _set_data,
    _T.requires_grad.__set__: _set_requires_grad,
    _T.requires_grad_: _set_requires_grad,
    _T.to: _to,
    _T.cuda: _cuda,
    _T.cpu: _cpu,
    _T.pin_memory: _same,
    _T.item: origins.item,
    _T.tolist: origins.tolist,
    _T.type: _type,
    torch._C._nn._parse_to: _parse_to,
    **{getattr(_T, name): _plain for name in ("size", "dim", "numel", "data_ptr", "stride", "element_size")},
    **{
        getattr(_T, name).__get__: _plain
        for name in ("shape", "dtype", "requires_grad", "is_leaf", "grad_fn", "layout")
    },
}


_Device = torch.device


_named: set[int] = set()


def _name(index: int) -> None:
    """Report where the script first names a device by a number."""
    if index not in _named:
        _named.add(index)
        channel().say("device", index=index, at=place())


class _DeviceType(type):
    """Makes `isinstance(x, torch.device)` true of real devices."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Device)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], int) and not isinstance(args[0], bool):
            _name(args[0])
            return _Device("cuda", args[0])
        found = _Device(*args, **kwargs)
        if found.type == "cuda" and found.index is not None:
            _name(found.index)
        return found


class device(metaclass=_DeviceType):  # noqa: N801 - it has the name of what it replaces
    """`torch.device`, which also takes the number of an imagined device."""


def enter() -> None:
    """Imagine the devices in this thread and in those that it starts."""
    _watch_subclasses()
    _watch_engine()
    device.__module__ = "torch"
    torch.device = device
    ImaginedDevices().__enter__()
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(self: threading.Thread) -> None:
        with ImaginedDevices():
            original(self)

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]


def _watch_engine() -> None:
    """Hooks in a backward pass need imagined devices: torch calls `backward` without the mode that has seen the call."""
    run = torch.autograd._engine_run_backward

    def engine(*args: Any, **kwargs: Any) -> Any:
        with ImaginedDevices():
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = engine


def _watch_subclasses() -> None:
    """Parameters and wrappers have the device of what they are made from."""
    parameter, plain, wrapper = (
        torch.nn.Parameter.__new__,
        torch.Tensor._make_subclass,
        torch.Tensor._make_wrapper_subclass,
    )

    @functools.wraps(parameter)
    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = parameter(cls, data, requires_grad)
        return made if data is None else mark(made, device_of(data))

    @functools.wraps(plain)
    def make(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        return mark(plain(cls, data, *args, **kwargs), device_of(data))

    @functools.wraps(wrapper)
    def wrap(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("device")
        if given is None or not is_cuda(given):
            return wrapper(cls, *args, **kwargs)
        return mark(wrapper(cls, *args, **{**kwargs, "device": CPU}), as_device(given))

    torch.nn.Parameter.__new__ = staticmethod(new)
    torch.Tensor._make_subclass = staticmethod(make)
    torch.Tensor._make_wrapper_subclass = staticmethod(wrap)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
