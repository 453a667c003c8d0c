"""What each GPU computes and copies by itself: checked values, and rates. Called with torch already imported.

Each part takes about a second on a GPU. On a CPU it runs only if DDPDOCTOR_COMPUTE=on, with small sizes: its rates say nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from ddpdoctor.probe.collectives import Stage

__all__ = ["checked_rates", "is_wanted"]

GEMM_ROWS = {"cuda": 8192, "cpu": 192}
NONZERO_SHARE = 1 / 64
"""The share of elements of the first factor that are 1 or -1: every sum is a whole number of at most 256, so that bf16 holds it
exactly."""
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 20}
HOST_COPY_BYTES = {"cuda": 256 << 20, "cpu": 1 << 20}
PEER_COPY_BYTES = 64 << 20
ALL_REDUCE_ELEMENTS = {"cuda": 16 << 20, "cpu": 1 << 15}
SECONDS = {"cuda": 0.5, "cpu": 0.01}
"""How long each rate is measured."""


def is_wanted(switch: str | None, has_gpu: bool) -> bool:
    """Whether a rank asks for this stage; `switch` is the value of DDPDOCTOR_COMPUTE."""
    return has_gpu if switch not in ("on", "off") else switch == "on"


def checked_rates(stage: Stage) -> Iterator[tuple[str, float]]:
    """The rates of this rank's device by name: `gemm_tflops` (bf16), `copy_gb_per_s` (bytes read and written), `to_gpu_gb_per_s`,
    `from_gpu_gb_per_s`, `peer_N_gb_per_s`; in GB/s (10^9). Last, a large all_reduce that all ranks check.

    Raises:
        WrongValue: a product, a copy or the all_reduce has an element that is not as computed.
    """
    yield "gemm_tflops", _gemm(stage)
    yield "copy_gb_per_s", _copy(stage)
    yield from _host_copies(stage)
    yield from _peer_copies(stage)
    _large_all_reduce(stage)


def _gemm(stage: Stage) -> float:
    """TFLOP/s of one matrix product, after and before which every row of it is checked by its sum."""
    torch, rows = stage.torch, GEMM_ROWS[stage.device.type]
    dtype = torch.bfloat16 if stage.device.type == "cuda" else torch.float32
    source = torch.Generator(device=stage.device).manual_seed(stage.rank + 1)
    chances = torch.rand(rows, rows, generator=source, device=stage.device)
    left = (chances < NONZERO_SHARE / 2).to(dtype) - (chances > 1 - NONZERO_SHARE / 2).to(dtype)
    right = torch.randint(-1, 2, (rows, rows), generator=source, device=stage.device).to(dtype)
    del chances
    expected = left.double() @ right.double().sum(1)
    product = left @ right
    stage.expect("a matrix product", product.double().sum(1), expected)

    def multiply() -> None:
        torch.mm(left, right, out=product)

    seconds = _seconds_each(stage, multiply)
    stage.expect("a matrix product", product.double().sum(1), expected)
    return 2 * rows**3 / seconds / 1e12


def _copy(stage: Stage) -> float:
    """GB/s read and written of copies within the device's memory."""
    size = _with_room(stage, COPY_BYTES[stage.device.type])
    numbers = stage.torch.arange(size // 8, dtype=stage.torch.int64, device=stage.device)
    copied = stage.torch.empty_like(numbers)
    seconds = _seconds_each(stage, lambda: copied.copy_(numbers))
    stage.expect("a copy in device memory", copied, numbers)
    return 2 * size / seconds / 1e9


def _host_copies(stage: Stage) -> Iterator[tuple[str, float]]:
    torch, size = stage.torch, HOST_COPY_BYTES[stage.device.type]
    is_gpu = stage.device.type == "cuda"
    numbers = torch.arange(size // 8, dtype=torch.int64, pin_memory=is_gpu)
    back = torch.empty(size // 8, dtype=torch.int64, pin_memory=is_gpu)
    there = torch.empty(size // 8, dtype=torch.int64, device=stage.device)
    yield "to_gpu_gb_per_s", size / _seconds_each(stage, lambda: there.copy_(numbers, non_blocking=True)) / 1e9
    yield "from_gpu_gb_per_s", size / _seconds_each(stage, lambda: back.copy_(there, non_blocking=True)) / 1e9
    stage.expect("a copy to the device and back", back, numbers)


def _peer_copies(stage: Stage) -> Iterator[tuple[str, float]]:
    """Copies from this rank's GPU to each other GPU that it sees and has peer access to."""
    if stage.device.type != "cuda":
        return
    cuda, torch = stage.torch.cuda, stage.torch
    for other in range(cuda.device_count()):
        if other == stage.device.index or not cuda.can_device_access_peer(stage.device.index, other):
            continue
        numbers = torch.arange(PEER_COPY_BYTES // 8, dtype=torch.int64, device=stage.device)
        there = torch.empty(PEER_COPY_BYTES // 8, dtype=torch.int64, device=torch.device("cuda", other))
        seconds = _seconds_each(stage, partial(there.copy_, numbers), share=0.1)
        stage.expect(f"a copy to GPU {other} and back", there.to(stage.device), numbers)
        yield f"peer_{other}_gb_per_s", PEER_COPY_BYTES / seconds / 1e9


def _large_all_reduce(stage: Stage) -> None:
    """Sum whole numbers over all ranks and check every element."""
    if stage.world_size == 1:
        return
    numbers = stage.pattern(_with_room(stage, 8 * ALL_REDUCE_ELEMENTS[stage.device.type]) // 8)
    tensor = numbers * (stage.rank + 1)
    stage.dist.all_reduce(tensor)
    stage.expect("a large all_reduce", tensor, numbers * (stage.world_size * (stage.world_size + 1) // 2))


def _with_room(stage: Stage, size: int) -> int:
    """At most an eighth of the free memory of the GPU, the same on all ranks; a multiple of 8."""
    if stage.device.type != "cuda":
        return size
    free, _ = stage.torch.cuda.mem_get_info(stage.device)
    least = stage.torch.tensor([min(size, free // 8)], dtype=stage.torch.float64, device=stage.device)
    if stage.world_size > 1:
        stage.dist.all_reduce(least, op=stage.dist.ReduceOp.MIN)
    return max(8, int(least.item()) // 8 * 8)


def _seconds_each(stage: Stage, work: Callable[[], object], share: float = 1.0) -> float:
    """Seconds of one repetition, over the time limit; the first repetition is not counted."""
    work()
    stage.settle()
    started, count = time.perf_counter(), 0
    limit = SECONDS[stage.device.type] * share
    while not count or time.perf_counter() - started < limit:
        for _ in range(4):
            work()
        count += 4
        stage.settle()
    return (time.perf_counter() - started) / count
