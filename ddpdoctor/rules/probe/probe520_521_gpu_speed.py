"""PROBE520, PROBE521: a GPU that computes or copies more slowly than the others of its job, or than its data sheet says."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu_speeds import published_speed
from ddpdoctor.facts.probe import Probe, RankReport
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

OF_OTHERS = {"gemm_tflops": 0.85, "copy_gb_per_s": 0.85, "to_gpu_gb_per_s": 0.6, "from_gpu_gb_per_s": 0.6}
"""Below this share of the median of all ranks a rate is a finding. Healthy GPUs of one model are within 5 % in computing; copies
to and from the host share PCIe switches and CPU memory with other ranks.
"""
OF_PUBLISHED = 0.4
"""Below this share of the data sheet's peak a rate is a finding: a healthy GPU reaches 70 to 90 %."""
FEWEST = 3
"""The fewest ranks whose median says anything."""
WORDS = {
    "gemm_tflops": ("multiplies matrices at", "TFLOP/s"),
    "copy_gb_per_s": ("copies within its memory at", "GB/s"),
    "to_gpu_gb_per_s": ("receives from the host at", "GB/s"),
    "from_gpu_gb_per_s": ("sends to the host at", "GB/s"),
}


@cause("PROBE520", "gpu-computes-slowly", Severity.WARNING)
def gpu_computes_slowly(probe: Probe) -> Iterator[Finding]:
    """A GPU multiplies matrices or reads its memory more slowly than the job's other GPUs.

    ## Why it matters
    Every step takes as long as the slowest GPU, and no log shows which one that is.

    ## Fix
    Compare its clocks, power limit, temperature, and other processes with those of another GPU (`ddpdoctor gpus`,
    `nvidia-smi -q -d PERFORMANCE`); take it out of the job until they are equal.

    ## Example

        rank 3 on a multiplies matrices at 410 TFLOP/s (other ranks: 705 TFLOP/s)

        # before: a power limit from an earlier test
        nvidia-smi -i 3 -pl 350
        # after
        nvidia-smi -i 3 -pl 700

    ## Source
    bf16 products of 8192 x 8192 matrices and copies of 1 GiB, for half a second each; peaks are those of NVIDIA's data sheets.
    """
    yield from _slow(probe, ("gemm_tflops", "copy_gb_per_s"))


@cause("PROBE521", "slow-host-copies", Severity.WARNING)
def slow_host_copies(probe: Probe) -> Iterator[Finding]:
    """Copies between the host and one GPU are much slower than those of the other GPUs.

    ## Why it matters
    Batches arrive late on that GPU, and checkpoints and offloaded optimizer states take longer. The other ranks wait.

    ## Fix
    Look at the width and speed of its PCIe link (`ddpdoctor gpus`), and at the NUMA node of its CPUs (`ddpdoctor topo`);
    bind the rank to CPUs near its GPU.

    ## Example

        rank 5 on b receives from the host at 6.2 GB/s (other ranks: 52 GB/s)

        # before: the process runs on the other socket
        torchrun --nproc-per-node 8 train.py
        # after
        torchrun --nproc-per-node 8 --no-python numactl --cpunodebind=1 --membind=1 python train.py

    ## Source
    Copies of 256 MiB from and to pinned memory, for half a second each, on all ranks at the same time.
    """
    yield from _slow(probe, ("to_gpu_gb_per_s", "from_gpu_gb_per_s"))


def _slow(probe: Probe, names: tuple[str, ...]) -> Iterator[Finding]:
    """Ranks whose rate is far below the others', or, where there are too few, far below the data sheet."""
    from statistics import median  # imports fractions and decimal

    ranks = [rank for rank in probe.ranks if rank.rates and rank.gpu_uuid is not None]
    if not ranks:
        not_here("no GPU was measured")
    for name in names:
        rates = {rank.rank: rank.rates[name] for rank in ranks if name in rank.rates}
        if len(rates) < FEWEST:
            yield from _below_data_sheet(probe, ranks, name)
            continue
        usual = median(rates.values())
        for rank in ranks:
            if rates.get(rank.rank, usual) < OF_OTHERS[name] * usual:
                yield _finding(rank, name, usual, "other ranks")


def _below_data_sheet(probe: Probe, ranks: list[RankReport], name: str) -> Iterator[Finding]:
    speed = published_speed(probe.device)
    peak = (
        None if speed is None else {"gemm_tflops": speed.gemm_tflops, "copy_gb_per_s": speed.memory_gb_per_s}.get(name)
    )
    for rank in ranks:
        if peak is not None and name in rank.rates and rank.rates[name] < OF_PUBLISHED * peak:
            yield _finding(rank, name, peak, f"peak of {probe.device}")


def _finding(rank: RankReport, name: str, usual: float, whose: str) -> Finding:
    verb, unit = WORDS[name]
    rate = rank.rates[name]
    return Finding(
        f"rank {rank.rank} on {rank.host} {verb} {_shown(rate)} {unit} ({whose}: {_shown(usual)} {unit})",
        (Evidence(f"probe.ranks[{rank.rank}].rates.{name}", _shown(rate), f"about {_shown(usual)}"),),
        where=Where(host=rank.host, node_rank=rank.node_rank, rank=rank.rank, local_rank=rank.local_rank, gpu=rank.gpu),
        ranks=(rank.rank,),
    )


def _shown(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
