"""From a rehearsal to findings: the code, both lines, and who is to blame."""

from __future__ import annotations

import pytest
from rehearsed import SHOWN, Job, at, tensor

from ddpdoctor.engine import judge
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.rehearsal import (
    Difference,
    DifferenceKind,
    ObservationKind,
    RankEnd,
    Rehearsal,
    RehearsedRank,
    Side,
)
from ddpdoctor.findings import Certainty, Finding
from ddpdoctor.rules import AREAS, load
from ddpdoctor.rules.views import rehearsal_rules

RULES = rehearsal_rules(load(tuple(AREAS.values())))


def findings(rehearsal: Rehearsal) -> list[Finding]:
    outcome = judge(Facts("ddpdoctor.facts/1", "", "here", rehearsal=rehearsal), RULES)
    assert outcome.crashed == []
    return outcome.findings


def test_an_empty_rehearsal_has_no_findings() -> None:
    assert findings(Rehearsal()) == []


@pytest.mark.parametrize("kind", list(SHOWN), ids=lambda kind: kind.value)
def test_every_observation_is_a_finding_with_its_line(kind: ObservationKind) -> None:
    facts = SHOWN[kind][0]().facts()
    shown = next(each for each in facts.observations if each.kind is kind)
    assert any(f.where.line == shown.places[0].line and f.where.file == "train.py" for f in findings(facts)), findings(
        facts
    )


@pytest.mark.parametrize("kind", list(DifferenceKind), ids=lambda kind: kind.value)
def test_every_difference_is_one_finding(kind: DifferenceKind) -> None:
    rank = RehearsedRank(0, end=RankEnd.FINISHED)
    (found,) = findings(
        Rehearsal((rank,), difference=Difference(kind, 3, (0, 1), (Side((1,), None, "left"), Side((0,), None, "left"))))
    )
    assert found.ranks == (1,)
    assert found.where.rank == 1


def test_the_words_of_two_sides() -> None:
    job = Job(3)
    job.all("barrier", 4)
    for rank, size in ((0, 4), (1, 5), (2, 4)):
        job.call(rank, "all_reduce", 41, returns=False, **{"in": tensor(size)})
    (found,) = findings(job.facts())
    assert (
        found.message
        == "collective 2: rank 1 all_reduce([5] float32) at train.py:41; ranks 0, 2 all_reduce([4] float32) at train.py:41"
    )
    assert (found.code, found.where.file, found.where.line, found.where.rank) == ("SCRIPT028", "train.py", 41, 1)


def test_an_exception_of_several_ranks_is_one_finding() -> None:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "raised", type="KeyError", text="'LOCAL'", at=at(7))
    (found,) = findings(job.facts())
    assert (found.code, found.where.line, found.ranks, found.certainty) == ("PROBE505", 7, (0, 1), Certainty.CERTAIN)


def test_an_exception_that_follows_from_another_rank_is_none() -> None:
    job = Job(2)
    job.say(0, "raised", type="ValueError", text="no", at=at(7))
    job.say(1, "raised", type="RuntimeError", text="Connection closed by peer [127.0.0.1]:3", at=at(9))
    assert [f.ranks for f in findings(job.facts())] == [(0,)]


def test_an_obstacle_is_no_fault_of_the_script() -> None:
    job = Job(1)
    job.say(0, "cannot", what="triton", at=at(7)).say(
        0, "raised", type="CannotRehearse", text="triton needs a GPU", at=at(7)
    )
    facts = job.facts()
    assert findings(facts) == []
    assert (facts.obstacle, str(facts.obstacle_place)) == ("triton", "train.py:7")


def test_a_rank_that_was_killed() -> None:
    job = Job(2)
    job.comparison.exited(1, -11)
    (found,) = findings(job.facts())
    assert (found.code, found.where.rank) == ("PROBE506", 1)
    assert "SIGSEGV" in found.message


def test_a_stream_that_all_ranks_read() -> None:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "ddp", at=at(9), devices=[])
        job.say(rank, "loader", loader=0, sampler="_InfiniteConstantSampler", size=None, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
        job.say(rank, "batch", loader=0, count=1, rows=[5, 6, 7])
        job.call(rank, "backward")
        job.say(rank, "step", count=1)
    assert [(f.code, f.where.line) for f in findings(job.facts())] == [("SCRIPT044", 12)]
