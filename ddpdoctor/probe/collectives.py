"""The collectives that every rank runs: first with known values, then timed. Called with torch already imported."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from ddpdoctor.probe.errors import WrongValue

__all__ = ["Stage", "busbw_factor", "check_all_reduce", "check_others", "measure"]

ELEMENTS = 1024
ATTEMPTS = 4
CPU_SIZES = (4 << 10, 256 << 10, 1 << 20)
GPU_SIZES = (4 << 10, 1 << 20, 32 << 20, 256 << 20)
CELL_SECONDS = 0.01
"""How long one collective at one size is repeated, within a few repetitions."""
SLOWEST_SECONDS = 0.5
"""A collective that takes longer than this at one size is not run at larger ones."""
CPU_SECONDS = 0.1
"""The time limit without a GPU: larger sizes that would take longer are skipped, because the job is waiting."""
RUNS = 2
"""How often a collective runs before the number of repetitions is chosen: the first run connects."""
LATENCY_BYTES = 64 << 10
"""Up to this size, a collective shows latency only, so its time does not predict that of a larger one."""
OTHERS = ("broadcast", "all_gather", "reduce_scatter", "all_to_all", "send/recv")


class Stage:
    """One rank of the process group: its device, and the calls on it."""

    def __init__(self, torch: Any, device: Any, rank: int, world_size: int) -> None:
        self.torch = torch
        self.dist = torch.distributed
        self.device = device
        self.rank = rank
        self.world_size = world_size

    def tensor(self, elements: int, value: float = 0.0) -> Any:
        return self.torch.full((elements,), value, dtype=self.torch.float64, device=self.device)

    def pattern(self, elements: int) -> Any:
        """1, 2, … 7, 1, 2, …: makes a shifted or partly written buffer visible."""
        return (self.torch.arange(elements, device=self.device) % 7 + 1).to(self.torch.float64)

    def noise(self, elements: int, seed: int) -> Any:
        """Integers of 20 random bits, the same on every rank: their sums are exact."""
        source = self.torch.Generator().manual_seed(seed)
        numbers = self.torch.randint(-(1 << 19), 1 << 19, (elements,), generator=source)
        return numbers.to(self.torch.float64).to(self.device)

    def settle(self) -> None:
        """Wait until the device has completed its work."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        self.dist.barrier(**({"device_ids": [self.device.index]} if self.device.type == "cuda" else {}))
        self.settle()

    def expect(self, collective: str, got: Any, expected: Any) -> None:
        """Raises:
        WrongValue: `got` differs anywhere from `expected`.
        """
        self.settle()
        wrong = (got != expected).nonzero()
        if len(wrong):
            at = int(wrong[0][0])
            raise WrongValue(collective, at, f"{float(got[at]):.12g}", f"{float(expected[at]):.12g}")


def check_all_reduce(stage: Stage, begin: Callable[[], None]) -> WrongValue | None:
    """Sum numbers times rank + 1 over all ranks, several times, and compare every element; the error, if any.

    First a pattern that makes a shifted buffer visible, then numbers of 20 random bits, which make flipped bits from bad
    memory or a bad path visible; how often distinguishes a glitch from a defect. `begin` is called before each run.
    """
    total = stage.world_size * (stage.world_size + 1) // 2
    wrong = []
    for attempt in range(ATTEMPTS):
        numbers = stage.pattern(ELEMENTS) if attempt == 0 else stage.noise(ELEMENTS, attempt)
        tensor = numbers * (stage.rank + 1)
        begin()
        stage.dist.all_reduce(tensor)
        try:
            stage.expect("all_reduce", tensor, numbers * total)
        except WrongValue as error:
            wrong.append(error)
    if not wrong:
        return None
    wrong[0].times = f"{len(wrong)} of {ATTEMPTS}"
    return wrong[0]


def check_others(stage: Stage) -> Iterator[tuple[str, str]]:
    """Run the other collectives with known values; yields those that the backend does not support, and its message."""
    for check in (_broadcast, _all_gather, _reduce_scatter, _all_to_all, _send_recv):
        try:
            check(stage)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if not _is_unsupported(error):
                raise
            yield check.__name__.lstrip("_"), " ".join(str(error).split())[:200]


def _is_unsupported(error: Exception) -> bool:
    words = str(error).lower()
    return isinstance(error, NotImplementedError) or any(
        w in words for w in ("not support", "unsupported", "not implemented", "no backend type associated")
    )


def _broadcast(stage: Stage) -> None:
    source = stage.world_size - 1
    pattern = stage.pattern(ELEMENTS)
    tensor = pattern * 3 if stage.rank == source else stage.tensor(ELEMENTS)
    stage.dist.broadcast(tensor, source)
    stage.expect("broadcast", tensor, pattern * 3)


def _all_gather(stage: Stage) -> None:
    piece = stage.pattern(64) + stage.rank * 10
    whole = [stage.tensor(64) for _ in range(stage.world_size)]
    stage.dist.all_gather(whole, piece)
    for rank, got in enumerate(whole):
        stage.expect("all_gather", got, stage.pattern(64) + rank * 10)


def _reduce_scatter(stage: Stage) -> None:
    whole = stage.torch.cat([stage.pattern(64) * (rank + 1) for rank in range(stage.world_size)])
    piece = stage.tensor(64)
    stage.dist.reduce_scatter_tensor(piece, whole)
    stage.expect("reduce_scatter", piece, stage.pattern(64) * (stage.rank + 1) * stage.world_size)


def _all_to_all(stage: Stage) -> None:
    numbers = stage.torch.arange(stage.world_size, dtype=stage.torch.float64, device=stage.device)
    got = stage.tensor(stage.world_size)
    stage.dist.all_to_all_single(got, numbers + stage.rank * 1000)
    stage.expect("all_to_all", got, numbers * 1000 + stage.rank)


def _send_recv(stage: Stage) -> None:
    if stage.world_size == 1:
        return
    got = stage.tensor(ELEMENTS)
    _ring(stage, stage.pattern(ELEMENTS) + stage.rank, got)
    stage.expect("send/recv", got, stage.pattern(ELEMENTS) + (stage.rank - 1) % stage.world_size)


def _ring(stage: Stage, sent: Any, got: Any) -> None:
    """Send to the next rank and receive from the previous one."""
    dist = stage.dist
    there, back = (stage.rank + 1) % stage.world_size, (stage.rank - 1) % stage.world_size
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, there), dist.P2POp(dist.irecv, got, back)]):
        work.wait()


def busbw_factor(collective: str, ranks: int) -> float:
    """The factor from algbw to busbw (nccl-tests, PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def measure(stage: Stage) -> Iterator[dict[str, Any]]:
    """Latency and bandwidth of each collective at a few sizes: JSON values of facts' `Measurement`.

    all_reduce first, at every size; then the others, size by size, within the time limit.
    """
    yield _timed("barrier", 0, statistics.median(_seconds(stage, stage.barrier) for _ in range(10)), 10, stage)
    if stage.world_size == 1:
        return
    on_cpu = stage.device.type == "cpu"
    sizes = CPU_SIZES if on_cpu else _sizes_with_room(stage)
    left = CPU_SECONDS if on_cpu else math.inf
    rates: dict[str, float] = {}
    for name, size in [("all_reduce", size) for size in sizes] + [(name, size) for size in sizes for name in OTHERS]:
        rate = rates.get(name, 0.0)
        if rate == math.inf or (size > LATENCY_BYTES and size * RUNS * rate > left):
            continue
        try:
            operation = _operation(stage, name, size)
            seconds = _common_seconds(stage, operation)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if not _is_unsupported(error):
                raise
            rates[name] = math.inf
            continue
        times = _repetitions(seconds)
        latency = statistics.median(_seconds(stage, operation) for _ in range(times)) if times > 1 else seconds
        yield _timed(name, size, latency, times, stage)
        left -= (RUNS + times) * seconds
        if size > LATENCY_BYTES or seconds > SLOWEST_SECONDS:
            rates[name] = seconds / size if seconds < SLOWEST_SECONDS else math.inf


def _sizes_with_room(stage: Stage) -> tuple[int, ...]:
    """The sizes whose buffers fit several times into the free memory of the fullest GPU, the same on every rank."""
    free = stage.tensor(1, stage.torch.cuda.mem_get_info(stage.device)[0])
    stage.dist.all_reduce(free, stage.dist.ReduceOp.MIN)
    return tuple(size for size in GPU_SIZES if size * 8 < float(free[0]))


def _operation(stage: Stage, name: str, size: int) -> Callable[[], object]:
    """One run of the collective over `size` bytes, the whole array as nccl-tests counts it."""
    dist, ranks = stage.dist, stage.world_size
    part = max(size // 8 // ranks, 1)
    whole, other, piece = stage.tensor(part * ranks), stage.tensor(part * ranks), stage.tensor(part)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(list(whole.chunk(ranks)), piece),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send/recv": lambda: _ring(stage, whole, other),
    }[name]


def _common_seconds(stage: Stage, operation: Callable[[], object]) -> float:
    """How long the second run took on the slowest rank: the same on all ranks, so that all repeat it equally often."""
    operation()
    seconds = stage.tensor(1, _seconds(stage, operation))
    stage.dist.all_reduce(seconds, stage.dist.ReduceOp.MAX)
    return float(seconds[0])


def _repetitions(seconds: float) -> int:
    return max(1, min(20, int(CELL_SECONDS / max(seconds, 1e-6))))


def _seconds(stage: Stage, operation: Callable[[], object]) -> float:
    stage.settle()
    started = time.perf_counter()
    operation()
    stage.settle()
    return time.perf_counter() - started


def _timed(name: str, size: int, seconds: float, times: int, stage: Stage) -> dict[str, Any]:
    measurement = {"collective": name, "size_bytes": size, "iterations": times, "latency_seconds": seconds}
    if size:
        algbw = size / seconds / 1e9
        measurement |= {"algbw_gb_per_s": algbw, "busbw_gb_per_s": algbw * busbw_factor(name, stage.world_size)}
    return measurement
