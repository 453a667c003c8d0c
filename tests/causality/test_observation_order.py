"""What of the evidence of a failed probe is its cause."""

from __future__ import annotations

from ddpdoctor.causality.observation_order import weigh
from ddpdoctor.facts.probe import Kind, Observation


def _of(kind: Kind, rank: int, seen_by: int, **details: str) -> Observation:
    return Observation(kind, f"rank {rank}: {kind.value}", (rank,), seen_by, **details)


def test_a_rank_that_said_that_it_was_told_to_end_did_not_just_go_away() -> None:
    told = _of(Kind.TERMINATED, 1, 1)
    assert weigh([_of(Kind.DIED, 1, 0), told]) == (told,)


def test_a_rank_that_went_away_is_the_cause_where_another_one_was_told_to_end() -> None:
    first, *others = weigh([_of(Kind.TERMINATED, 0, 0), _of(Kind.DIED, 1, 2)])
    assert (first.kind, first.ranks, first.is_cause) == (Kind.DIED, (1,), True)
    assert [each.is_cause for each in others] == [False]


def test_a_worker_that_was_killed_is_the_cause_though_its_rank_was_told_to_end_later() -> None:
    first, *_ = weigh([_of(Kind.TERMINATED, 1, 1), _of(Kind.DIED, 1, 1, signal="SIGKILL")])
    assert first.kind is Kind.DIED
