"""Measures pairs of ranks: latency and bandwidth in both directions. Called with torch already imported.

Hosts are paired first, by one rank of each, so that no NIC carries two pairs at a time; then, with GPUs, the ranks with
the same local_rank across the hosts (one rail each) and the ranks within every host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from ddpdoctor.facts.pairs import PairSpeed, schedule, slow_ends, slow_pairs
from ddpdoctor.probe.collectives import Stage

__all__ = ["groups", "pair_up"]

PINGS = 6
SMALL_BYTES = 128 << 10
SURE_TIMES = 3
"""How often a small transfer is repeated for a pair that was slow before."""
CPU_BYTES, GPU_BYTES = 1 << 20, 16 << 20
TIMES = 5
SLOW_SECONDS = 0.05
"""A small transfer that takes longer than this is not repeated with large ones."""
PATIENT_SECONDS = 0.01
"""Without a GPU, a large transfer that would take longer than this is replaced by a smaller one."""
AGAIN = 2
PAUSE_SECONDS = 1.0
MOST_SUSPECTS = 8


def groups(world_size: int, per_host: int, has_gpus: bool) -> list[list[list[int]]]:
    """The groups to pair, in sequential batches: the hosts, per rail with GPUs; then the GPUs within all hosts."""
    hosts = world_size // per_host
    rails = range(per_host) if has_gpus else range(1)
    found = [[[host * per_host + rail for host in range(hosts)]] for rail in rails] if hosts > 1 else []
    if has_gpus and per_host > 1:
        found.append([[host * per_host + local for local in range(per_host)] for host in range(hosts)])
    return found


def pair_up(stage: Stage, batches: Sequence[Sequence[Sequence[int]]]) -> list[PairSpeed]:
    """Measure all pairs, and slow ones again; all ranks call this with the same arguments and get the same result."""
    speeds: list[PairSpeed] = []
    by_cpu = stage.device.type == "cpu"
    for batch in batches:
        rounds = zip_longest(*(schedule(group) for group in batch), fillvalue=())
        pairs = _gather(stage, _measure(stage, [[pair for part in parts for pair in part] for parts in rounds]))
        suspects = [pair for group in batch for pair in _suspects(_within(pairs, group), by_cpu)][:MOST_SUSPECTS]
        slow = dict.fromkeys(suspects, 0)
        for _ in range(AGAIN if suspects else 0):
            time.sleep(PAUSE_SECONDS)
            again = _gather(stage, _measure(stage, [[pair] for pair in suspects], is_sure=True))
            now = {(p.first, p.second): p for p in (*pairs, *again)}
            still = {pair for group in batch for pair in _slow(_within(list(now.values()), group), by_cpu)}
            slow = {pair: times + (pair in still) for pair, times in slow.items()}
        speeds += [replace(p, slow_again=slow.get((p.first, p.second))) for p in pairs]
    return speeds


def _within(pairs: Sequence[PairSpeed], group: Sequence[int]) -> list[PairSpeed]:
    return [pair for pair in pairs if pair.first in group and pair.second in group]


def _suspects(pairs: Sequence[PairSpeed], by_cpu: bool) -> list[tuple[int, int]]:
    """The pairs to measure again: slow ones, and for an end that is slow with all partners, its two fastest."""
    ends = {slow.end for slow in slow_ends(pairs, by_cpu=by_cpu)}
    found = [(p.first, p.second) for p in slow_pairs(pairs, by_cpu=by_cpu)]
    for end in ends:
        own = [p for p in pairs if end in (p.first, p.second)]
        own.sort(key=lambda p: -max(p.there_gb_per_s, p.back_gb_per_s))
        found += [(p.first, p.second) for p in own[:2]]
    return list(dict.fromkeys(found))[:MOST_SUSPECTS]


def _slow(pairs: Sequence[PairSpeed], by_cpu: bool) -> set[tuple[int, int]]:
    """The pairs that are slow by themselves, or because one of their ends is slow with all partners."""
    ends = {slow.end for slow in slow_ends(pairs, by_cpu=by_cpu)}
    own = {(p.first, p.second) for p in pairs if ends & {p.first, p.second}}
    return own | {(p.first, p.second) for p in slow_pairs(pairs, by_cpu=by_cpu)}


def _measure(stage: Stage, rounds: Sequence[Sequence[tuple[int, int]]], *, is_sure: bool = False) -> list[PairSpeed]:
    """This rank's part; its measurements as the first of a pair. `is_sure` takes longer, to rule out chance."""
    speeds = []
    for pairs in rounds:
        for first, second in pairs:
            if stage.rank == first:
                speeds.append(_lead(stage, second, is_sure))
            elif stage.rank == second:
                _follow(stage, first, is_sure)
    return speeds


def _lead(stage: Stage, peer: int, is_sure: bool) -> PairSpeed:
    latency = min(_ping(stage, peer) for _ in range(PINGS)) / 2
    small = min(_there(stage, peer, SMALL_BYTES) for _ in range(SURE_TIMES if is_sure else 1))
    size, times = (SMALL_BYTES, 1)
    if small < SLOW_SECONDS:
        size, times = _large(stage, small, is_sure), TIMES * 2 if is_sure else TIMES
    _send(stage, peer, [size, times])
    there = min(_there(stage, peer, size) for _ in range(times))
    back = min(_back(stage, peer, size) for _ in range(times))
    there, back = (seconds - min(latency, seconds / 2) for seconds in (there, back))  # a busy rank answers pings late
    return PairSpeed(stage.rank, peer, latency, size / there / 1e9, size / back / 1e9)


def _large(stage: Stage, small: float, is_sure: bool) -> int:
    """The bytes of a transfer that shows the bandwidth, if SMALL_BYTES took `small` seconds."""
    if stage.device.type != "cpu":
        return GPU_BYTES
    is_quick = small * CPU_BYTES / SMALL_BYTES < PATIENT_SECONDS
    return CPU_BYTES if is_sure or is_quick else 2 * SMALL_BYTES


def _follow(stage: Stage, peer: int, is_sure: bool) -> None:
    for _ in range(PINGS):
        _receive(stage, peer, 2)
        _send(stage, peer, [0, 0])
    for _ in range(SURE_TIMES if is_sure else 1):
        _take(stage, peer, SMALL_BYTES)
    size, times = (int(word) for word in _receive(stage, peer, 2))
    for _ in range(times):
        _take(stage, peer, size)
    for _ in range(times):
        _receive(stage, peer, 2)
        stage.dist.send(stage.tensor(size // 8), peer)
    stage.settle()


def _ping(stage: Stage, peer: int) -> float:
    started = time.perf_counter()
    _send(stage, peer, [0, 0])
    _receive(stage, peer, 2)
    return time.perf_counter() - started


def _there(stage: Stage, peer: int, size: int) -> float:
    """Seconds until the peer confirms that it has received everything."""
    whole = stage.tensor(size // 8)
    stage.settle()
    started = time.perf_counter()
    stage.dist.send(whole, peer)
    _receive(stage, peer, 2)
    return time.perf_counter() - started


def _take(stage: Stage, peer: int, size: int) -> None:
    stage.dist.recv(stage.tensor(size // 8), peer)
    stage.settle()
    _send(stage, peer, [0, 0])


def _back(stage: Stage, peer: int, size: int) -> float:
    """Seconds from the request to the peer until everything was received."""
    whole = stage.tensor(size // 8)
    stage.settle()
    started = time.perf_counter()
    _send(stage, peer, [0, 0])
    stage.dist.recv(whole, peer)
    stage.settle()
    return time.perf_counter() - started


def _send(stage: Stage, peer: int, numbers: Sequence[float]) -> None:
    stage.dist.send(stage.torch.tensor(numbers, dtype=stage.torch.float64, device=stage.device), peer)


def _receive(stage: Stage, peer: int, count: int) -> list[float]:
    got = stage.tensor(count)
    stage.dist.recv(got, peer)
    stage.settle()
    return [float(number) for number in got]


def _gather(stage: Stage, own: Sequence[PairSpeed]) -> list[PairSpeed]:
    """The measurements of all ranks, on every rank: five numbers per pair, the same number of rows from each rank."""
    rows = stage.tensor(1, len(own))
    stage.dist.all_reduce(rows, stage.dist.ReduceOp.MAX)
    count = int(rows[0])
    if not count:
        return []
    mine = stage.tensor(count * 5)
    for at, pair in enumerate(own):
        numbers = [pair.first, pair.second, pair.latency_seconds, pair.there_gb_per_s, pair.back_gb_per_s]
        mine[at * 5 : at * 5 + 5] = stage.torch.tensor(numbers, dtype=stage.torch.float64, device=stage.device)
    everyone = [stage.tensor(count * 5) for _ in range(stage.world_size)]
    stage.dist.all_gather(everyone, mine)
    stage.settle()
    found = []
    for rows_of_rank in everyone:
        numbers = rows_of_rank.tolist()
        for at in range(0, len(numbers), 5):
            first, second, *speeds = numbers[at : at + 5]
            if second > first or speeds[0]:
                found.append(PairSpeed(int(first), int(second), *speeds))
    return sorted(found, key=lambda pair: (pair.first, pair.second))
