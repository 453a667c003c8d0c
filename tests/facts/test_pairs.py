"""The estimators for slow ends and links: one healthy partner shows what an end can do, noise only ever slows."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from ddpdoctor.facts.pairs import PairSpeed, median, schedule, slow_ends, slow_pairs


@pytest.mark.parametrize("count", range(2, 17))
def test_few_ends_meet_each_other_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = schedule(range(100, 100 + count))
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(combinations(range(100, 100 + count), 2))
    assert all(len({end for pair in pairs for end in pair}) == 2 * len(pairs) for pairs in rounds)


@pytest.mark.parametrize("count", [17, 32, 33, 100, 1000])
def test_many_ends_need_few_rounds_and_nobody_is_in_two_pairs_at_a_time(count: int) -> None:
    rounds = schedule(range(count))
    assert len(rounds) <= count.bit_length() + 2
    assert all(len({end for pair in pairs for end in pair}) == 2 * len(pairs) for pairs in rounds)
    assert {end for pairs in rounds for pair in pairs for end in pair} == set(range(count))


def _measured(count: int, noise: random.Random, slow: int | None = None) -> list[PairSpeed]:
    def speed(source: int) -> float:
        full = 0.05 if source == slow else 2.0
        return full * noise.uniform(0.6, 1.0)

    return [PairSpeed(a, b, 0.0001, speed(a), speed(b)) for a, b in combinations(range(count), 2)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_sender_is_found_in_noise_and_nobody_else(count: int, seed: int) -> None:
    noise = random.Random(seed)
    found = slow_ends(_measured(count, noise, slow=1))
    assert [(each.end, each.what) for each in found] == [(1, "sends")]
    assert slow_ends(_measured(count, noise)) == []


def test_where_the_cpu_moves_the_bytes_half_of_the_usual_speed_is_no_finding() -> None:
    def pairs(share: float) -> list[PairSpeed]:
        return [PairSpeed(a, b, 0.0001, 0.1, 0.1 * share if b == 2 else 0.1) for a, b in combinations(range(3), 2)]

    assert [each.end for each in slow_ends(pairs(0.35))] == [2]
    assert slow_ends(pairs(0.35), by_cpu=True) == []
    assert [each.end for each in slow_ends(pairs(0.1), by_cpu=True)] == [2]


def test_a_slow_pair_is_none_of_its_ends() -> None:
    pairs = [PairSpeed(a, b, 0.0001, 0.1 if (a, b) == (1, 2) else 2.0, 2.0) for a, b in combinations(range(4), 2)]
    assert slow_ends(pairs) == []
    assert [(each.first, each.second) for each in slow_pairs(pairs)] == [(1, 2)]


def test_two_ends_say_nothing_of_each_other() -> None:
    pairs = [PairSpeed(0, 1, 0.5, 0.001, 5.0)]
    assert (slow_ends(pairs), slow_pairs(pairs)) == ([], [])


def test_the_middle_of_numbers() -> None:
    assert [median([3.0]), median([1.0, 3.0]), median([5.0, 1.0, 3.0])] == [3.0, 2.0, 3.0]
