"""The speed of each pair of a job, and the estimators that find slow nodes, GPUs and links from it.

Noise only makes a transfer slower, so one healthy partner shows what an end can do: its bandwidth is the largest
over its partners, its latency the smallest. (Deviations from the mean of all pairs fail: with four nodes, a slow one is
part of half of the pairs.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.light_dataclass import dataclass

__all__ = ["PairSpeed", "SlowEnd", "schedule", "slow_ends", "slow_pairs"]

SLOW_END = 0.5
SLOW_PAIR = 0.4
OF_CPU = 0.5
"""If the CPU moves the bytes (Gloo), other work on a healthy node halves its speed, so the thresholds are multiplied by this."""
SLOW_LATENCY = 10.0
LEAST_LATENCY_SECONDS = 0.002
"""No latency below this counts as slow: on a busy machine a process may wait this long to be scheduled."""
LEAST_ENDS = 3
MOST_IN_CIRCLE = 16


@dataclass(frozen=True, slots=True)
class PairSpeed:
    """Two ranks: `there` is from the first to the second, in GB/s (10^9); latency is half a round trip.

    `slow_again` counts the repetitions, each at least 1 s after the last, that were as slow; None without repetitions.
    """

    first: int
    second: int
    latency_seconds: float
    there_gb_per_s: float
    back_gb_per_s: float
    slow_again: int | None = None


@dataclass(frozen=True, slots=True)
class SlowEnd:
    """One end that is slow with all its partners. `what` is `sends`, `receives` (GB/s) or `answers` (seconds)."""

    end: int
    what: str
    value: float
    usual: float


def schedule(ends: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs: every pair once for few ends; for many, those whose indexes differ in one bit, and a ring."""
    count = len(ends)
    if count <= MOST_IN_CIRCLE:
        return _circle(ends)
    rounds = []
    for bit in range((count - 1).bit_length()):
        pairs = [(a, a ^ 1 << bit) for a in range(count) if a < a ^ 1 << bit < count]
        rounds.append([(ends[a], ends[b]) for a, b in pairs])
    for start in (0, 1):
        rounds.append([(ends[a], ends[(a + 1) % count]) for a in range(start, count - 1 + start, 2) if a < count])
    return [pairs for pairs in rounds if pairs]


def _circle(ends: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The circle method: one end is fixed, the others rotate."""
    slots: list[int | None] = [*ends, *([None] if len(ends) % 2 else [])]
    rounds = []
    for _ in range(len(slots) - 1):
        half = len(slots) // 2
        opposite = zip(slots[:half], reversed(slots[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        slots = [slots[0], slots[-1], *slots[1:-1]]
    return [pairs for pairs in rounds if pairs]


def slow_ends(pairs: Iterable[PairSpeed], *, by_cpu: bool = False) -> list[SlowEnd]:
    """The ends that send, receive or answer at less than half of the usual speed (a quarter if the CPU moves the bytes).

    [] with fewer than three ends.
    """
    sends, receives, answers = _best(pairs)
    if len(sends) < LEAST_ENDS:
        return []
    share = SLOW_END * (OF_CPU if by_cpu else 1.0)
    usual = median(answers.values())
    late = max(SLOW_LATENCY * usual, LEAST_LATENCY_SECONDS)
    return [
        *(SlowEnd(end, "sends", *values) for end, *values in _below(sends, share)),
        *(SlowEnd(end, "receives", *values) for end, *values in _below(receives, share)),
        *(SlowEnd(end, "answers", value, usual) for end, value in sorted(answers.items()) if value > late),
    ]


def slow_pairs(pairs: Sequence[PairSpeed], *, by_cpu: bool = False) -> list[PairSpeed]:
    """The pairs that are much slower than both of their ends are with others; [] if each has one partner only."""
    sends, receives, _ = _best(pairs)
    if len(sends) < LEAST_ENDS:
        return []
    share = SLOW_PAIR * (OF_CPU if by_cpu else 1.0)

    def is_slow(source: int, target: int, speed: float, _: float) -> bool:
        return speed < share * min(sends[source], receives[target])

    return [pair for pair in pairs if any(is_slow(*direction) for direction in _directions(pair))]


def _directions(pair: PairSpeed) -> tuple[tuple[int, int, float, float], ...]:
    """Source, target, GB/s and seconds of both directions."""
    return (
        (pair.first, pair.second, pair.there_gb_per_s, pair.latency_seconds),
        (pair.second, pair.first, pair.back_gb_per_s, pair.latency_seconds),
    )


def _best(pairs: Iterable[PairSpeed]) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """The best values of each end over its partners: GB/s sent, GB/s received, and seconds of latency."""
    sends: dict[int, float] = {}
    receives: dict[int, float] = {}
    answers: dict[int, float] = {}
    for pair in pairs:
        for source, target, speed, latency in _directions(pair):
            sends[source] = max(sends.get(source, 0.0), speed)
            receives[target] = max(receives.get(target, 0.0), speed)
            answers[source] = min(answers.get(source, float("inf")), latency)
    return sends, receives, answers


def _below(values: dict[int, float], share: float) -> list[tuple[int, float, float]]:
    usual = median(values.values())
    return [(end, value, usual) for end, value in sorted(values.items()) if value < share * usual]


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle values (`statistics` would cost each supervisor 2 MB of memory)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
