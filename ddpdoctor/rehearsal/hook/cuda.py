"""torch.cuda on imagined devices: names, memory, streams, events, autocast; graphs are refused."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from ddpdoctor.rehearsal.hook import devices
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import place

__all__ = ["CannotRehearse", "imagine", "refuse"]

MEMORY = 80 * 2**30
NAME = "NVIDIA H100 80GB HBM3"
VERSION = "12.8"
NCCL = (2, 27, 3)


measured: set[tuple[str, str]] = set()
"""Files and functions of the user that have read how much memory of a device is used: here it is always 0."""


def _no_memory(*_: Any, **__: Any) -> int:
    measured.update((file, function) for file, _, function in place())
    return 0


class CannotRehearse(RuntimeError):
    """The script needs something that only a GPU has."""


def refuse(what: str) -> None:
    """The rehearsal cannot continue.

    Raises:
        CannotRehearse: always.
    """
    channel().say("cannot", what=what, at=place())
    raise CannotRehearse(f"{what} needs a GPU")


class ImaginedStream:
    """A stream: everything runs in order."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = devices.as_device("cuda" if device is None else device)
        self.device_index = self.device.index
        self.device_type = 1
        self.priority = priority
        self.cuda_stream = 0
        self.stream_id = 0

    def __enter__(self) -> ImaginedStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        devices.clear_flight()

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = ImaginedEvent() if event is None else event
        event.record()
        return event


class ImaginedEvent:
    """An event: the time at which it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.moment = 0.0

    def record(self, stream: Any = None) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, other: ImaginedEvent) -> float:
        return max(other.moment - self.moment, 1e-6) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        devices.clear_flight()

    def wait(self, stream: Any = None) -> None:
        pass

    def ipc_handle(self) -> bytes:
        return b""


class _Refused:
    """A class of torch.cuda that works on a GPU only. It stays a class: libraries name it in annotations."""

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse(f"torch.cuda.{type(self).__name__}")

    @classmethod
    def named(cls, name: str) -> type:
        return type(name, (cls,), {})


class _StreamContext:
    """`with torch.cuda.StreamContext(stream):`"""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *_: object) -> None:
        pass


class _Device:
    """`with torch.cuda.device(1):`"""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else devices.as_device(device).index or 0
        self._before = 0

    def __enter__(self) -> None:
        self._before = devices.current()
        if self.idx >= 0:
            devices.select(self.idx)

    def __exit__(self, *_: object) -> None:
        devices.select(self._before)


def imagine() -> None:
    """Replace the functions of torch.cuda."""
    cuda = torch.cuda
    count = int(channel().config.get("gpus", 0))
    nothing = lambda *_, **__: None  # noqa: E731
    zero = lambda *_, **__: 0  # noqa: E731
    properties = SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        warp_size=32,
        L2_cache_size=50 * 2**20,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=233472,
        uuid="00000000-0000-0000-0000-000000000000",
    )

    def set_device(device: Any) -> None:
        devices.select(device)
        channel().say("set_device", device=devices.current(), at=place())

    def synchronize(device: Any = None) -> None:
        devices.clear_flight()

    def checked(device: Any = None, *_: Any, **__: Any) -> Any:
        if device is not None:
            devices.as_device(device)
        return properties

    @contextmanager
    def stream(given: Any) -> Any:
        yield given

    def seeded(seed: int) -> None:
        channel().say("seed", what="torch.cuda", seed=int(seed), at=place())

    replacements: dict[str, Any] = {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "is_initialized": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": nothing,
        "current_device": devices.current,
        "set_device": set_device,
        "synchronize": synchronize,
        "get_device_name": lambda device=None: checked(device).name,
        "get_device_properties": checked,
        "get_device_capability": lambda device=None: (9, 0),
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "can_device_access_peer": lambda *_: True,
        "mem_get_info": lambda device=None: (MEMORY - 2**30, MEMORY),
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda *_, **__: True,
        "memory_stats": lambda *_, **__: {},
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "is_current_stream_capturing": lambda: False,
        "Stream": ImaginedStream,
        "Event": ImaginedEvent,
        "ExternalStream": ImaginedStream,
        "stream": stream,
        "StreamContext": _StreamContext,
        "current_stream": lambda device=None: ImaginedStream(device),
        "default_stream": lambda device=None: ImaginedStream(device),
        "set_stream": nothing,
        "device": _Device,
        "device_of": lambda tensor: _Device(devices.device_of(tensor) or None),
        "manual_seed": seeded,
        "manual_seed_all": seeded,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": zero,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state.cpu()),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "set_rng_state_all": nothing,
        "CUDAGraph": _Refused.named("CUDAGraph"),
        "graph": _Refused.named("graph"),
        "make_graphed_callables": lambda *_, **__: refuse("torch.cuda.make_graphed_callables"),
        **dict.fromkeys(
            ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated"), nothing
        ),
        **dict.fromkeys(
            ("reset_max_memory_cached", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"), nothing
        ),
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), _no_memory
        ),
        **dict.fromkeys(("memory_cached", "max_memory_cached", "utilization", "temperature", "power_draw"), zero),
    }
    for name, value in replacements.items():
        if hasattr(cuda, name):
            setattr(cuda, name, value)
    for module in (cuda.memory, cuda.random, cuda.streams):
        for name, value in replacements.items():
            if name in vars(module) and name not in ("Stream", "device", "init", "seed"):
                setattr(module, name, value)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, zero)
    for name, dtype in {
        "Float": "float32",
        "Double": "float64",
        "Half": "float16",
        "Long": "int64",
        "Int": "int32",
        "Byte": "uint8",
        "Bool": "bool",
    }.items():
        setattr(cuda, f"{name}Tensor", _legacy(getattr(torch, dtype)))
    if torch.version.cuda is None:
        torch.version.cuda = VERSION  # libraries compare it with what they were built for
    if hasattr(cuda, "nccl"):
        cuda.nccl.version = lambda: NCCL
    _accelerator(count)
    _autocast()
    _generator()


def _legacy(dtype: Any) -> Any:
    def make(*args: Any) -> Any:
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=dtype, device="cuda")
        return torch.zeros(args, dtype=dtype, device="cuda")

    return make


def _accelerator(count: int) -> None:
    if count and hasattr(torch._C, "_get_accelerator"):
        torch._C._get_accelerator = lambda *_: torch.device("cuda")
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    replacements: dict[str, Any] = {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "current_accelerator": lambda check_available=False: torch.device("cuda") if count else None,
        "current_device_index": devices.current,
        "current_device_idx": devices.current,
        "set_device_index": devices.select,
        "set_device_idx": devices.select,
        "synchronize": lambda device=None: devices.clear_flight(),
        "current_stream": lambda device=None: ImaginedStream(device),
        "set_stream": lambda stream: None,
        "empty_cache": lambda: None,
    }
    for name, value in replacements.items():
        if hasattr(accelerator, name):
            setattr(accelerator, name, value)


def _autocast() -> None:
    """`autocast("cuda")` becomes `autocast("cpu")` with the dtype that CUDA would use."""
    original = torch.amp.autocast.__init__

    def begin(self: Any, device_type: Any, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    torch.amp.autocast.__init__ = begin
    if hasattr(torch, "get_autocast_gpu_dtype"):
        torch.get_autocast_gpu_dtype = lambda: torch.float16
    cuda_amp = torch.cuda.amp.autocast_mode
    common = getattr(torch.cuda.amp, "common", None)
    if common is not None:
        common.amp_definitely_not_available = lambda: False
    grad_scaler = (
        __import__("torch.amp.grad_scaler", fromlist=["grad_scaler"]) if hasattr(torch.amp, "GradScaler") else None
    )
    module: Any
    for module in (cuda_amp, grad_scaler):
        if module is not None and hasattr(module, "amp_definitely_not_available"):
            module.amp_definitely_not_available = lambda: False


def _generator() -> None:
    plain = torch.Generator

    class Generator(plain):  # type: ignore[misc, valid-type]
        """A generator on the CPU, wherever the script wanted it."""

        def __new__(cls, device: Any = "cpu") -> Any:
            if is_imagined(device):
                devices.as_device(device)
                device = "cpu"
            return plain.__new__(cls, device=device)

        def __init__(self, device: Any = "cpu") -> None:
            super().__init__()

    torch.Generator = Generator


def is_imagined(device: Any) -> bool:
    """Whether this names an imagined device."""
    return devices.is_cuda(device)
