"""What of the evidence of a failed probe is its cause."""

from __future__ import annotations

import pytest

from ddpdoctor.causality.observation_order import NEEDS_NO_GRACE, STAGES, weigh
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.findings import CausalStage


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


def test_everything_that_a_rank_can_observe_has_a_stage() -> None:
    assert set(STAGES) == set(Kind)


ORDER = (
    *(Kind.BAD_ENVIRONMENT, Kind.PORT_TAKEN, Kind.OUT_OF_FILES, Kind.GLOO_LOOPBACK, Kind.IMPORT_FAILED, Kind.MISMATCH),
    *(Kind.DIED, Kind.STOPPED, Kind.HOST_LOST, Kind.UNINTERRUPTIBLE, Kind.EXCEPTION, Kind.ELSEWHERE, Kind.NEVER_JOINED),
    *(Kind.LINK_BLACK_HOLE, Kind.LINK_BLOCKED, Kind.PEER_ERROR, Kind.STORE_LOST, Kind.OUT_OF_TIME, Kind.HANG),
    Kind.TERMINATED,
)
"""One observation of each stage, the cause first."""


def test_the_observation_of_the_earliest_stage_is_the_cause() -> None:
    found = weigh([_of(kind, rank, rank) for rank, kind in enumerate(reversed(ORDER))])
    assert tuple(each.kind for each in found) == ORDER
    assert [each.kind for each in found if each.is_cause] == [Kind.BAD_ENVIRONMENT]


@pytest.mark.parametrize("kind", sorted(NEEDS_NO_GRACE))
def test_what_needs_no_grace_is_a_fault_by_itself(kind: Kind) -> None:
    assert STAGES[kind] is CausalStage.FAULT
