"""The first difference between ranks: each kind is found, and what looks like it and is legal is not."""

from __future__ import annotations

from textwrap import dedent

import pytest
from rehearsed import FILE, Job, at, tensor

from ddpdoctor.facts.rehearsal import Difference, DifferenceKind, Rehearsal

Kind = DifferenceKind


def kind_of(job: Job, text: str = "") -> DifferenceKind | None:
    found = job.facts(text).difference
    return None if found is None else found.kind


def difference(rehearsal: Rehearsal) -> Difference:
    assert rehearsal.difference is not None
    return rehearsal.difference


UNLIKE = {
    Kind.SHAPE: ("all_reduce", {"in": tensor(4)}, {"in": tensor(5)}),
    Kind.DTYPE: ("all_reduce", {"in": tensor(4)}, {"in": tensor(4, dtype="float64")}),
    Kind.ROOT: ("broadcast", {"in": tensor(4), "root": 0}, {"in": tensor(4), "root": 1}),
    Kind.REDUCTION: ("all_reduce", {"in": tensor(4), "red": "SUM"}, {"in": tensor(4), "red": "MAX"}),
    Kind.LENGTH: ("broadcast_object_list", {"objects": 1}, {"objects": 2}),
    Kind.GROUPS: ("new_group", {"ranks": [0]}, {"ranks": [1]}),
    Kind.MODELS: ("DistributedDataParallel", {"digest": 1}, {"digest": 2}),
}


@pytest.mark.parametrize("kind", UNLIKE, ids=lambda kind: kind.value)
def test_calls_that_differ(kind: DifferenceKind) -> None:
    operation, one, other = UNLIKE[kind]
    job = Job(3)
    job.all("barrier")
    for rank, fields in ((0, one), (1, other), (2, one)):
        job.call(rank, operation, 20, returns=False, **fields)
    found = difference(job.facts())
    assert (found.kind, found.number) == (kind, 2)
    assert [side.ranks for side in found.sides] == [(1,), (0, 2)], "the minority first"
    assert [str(side.place) for side in found.sides] == ["train.py:20", "train.py:20"]


@pytest.mark.parametrize("kind", UNLIKE, ids=lambda kind: kind.value)
def test_equal_calls_do_not_differ(kind: DifferenceKind) -> None:
    operation, one, _ = UNLIKE[kind]
    job = Job(3).all("barrier").all(operation, 20, **one).leave(0, 1, 2)
    assert kind_of(job) is None


def test_a_shape_with_as_many_elements_is_the_same_collective() -> None:
    job = Job(2)
    job.call(0, "all_reduce", **{"in": tensor(2, 3)})
    job.call(1, "all_reduce", **{"in": tensor(6)})
    assert kind_of(job) is None


def test_all_gather_may_take_other_sizes_if_the_lists_expect_them() -> None:
    job, lists = Job(2), [["float32", [4], None], ["float32", [5], None]]
    job.call(0, "all_gather", **{"in": tensor(4), "out": lists})
    job.call(1, "all_gather", **{"in": tensor(5), "out": lists})
    assert kind_of(job) is None
    job.call(0, "all_gather", **{"in": tensor(4), "out": lists})
    job.call(1, "all_gather", **{"in": tensor(6), "out": lists})
    assert kind_of(job) is Kind.SHAPE


def test_splits_of_all_to_all_are_compared_pair_by_pair() -> None:
    job = Job(2)
    job.call(0, "all_to_all_single", **{"in": tensor(3), "splits_in": [1, 2], "splits_out": [1, 4]})
    job.call(1, "all_to_all_single", **{"in": tensor(7), "splits_in": [4, 3], "splits_out": [2, 3]})
    assert kind_of(job) is None
    job.call(0, "all_to_all_single", **{"in": tensor(3), "splits_in": [1, 2], "splits_out": [1, 4]})
    job.call(1, "all_to_all_single", **{"in": tensor(7), "splits_in": [5, 2], "splits_out": [2, 2]})
    assert kind_of(job) is Kind.SHAPE


BRANCH = dedent(
    """\
    def main():
        for step in range(3):
            work()
            if rank == 0:
                dist.all_reduce(x)
            loss.backward()
        dist.barrier()
    """
)


def test_a_collective_in_a_rank_branch() -> None:
    job = Job(3)
    job.call(0, "all_reduce", 5, returns=False, **{"in": tensor(1)})
    for rank in (1, 2):
        job.call(rank, "backward", 6, returns=False)
    found = difference(job.facts(BRANCH))
    assert found.kind is Kind.EXTRA
    assert found.sides[0].ranks == (0,)
    assert found.condition is not None
    assert found.condition.line == 4


def test_a_collective_that_data_decides_about() -> None:
    job = Job(2)
    job.call(0, "all_reduce", 5, returns=False, **{"in": tensor(1)})
    job.call(1, "backward", 6, returns=False)
    assert kind_of(job, BRANCH.replace("rank == 0", "loss > 3")) is Kind.DATA


def test_a_rank_that_left_a_loop() -> None:
    job = Job(2)
    job.all("backward", 6)
    job.call(0, "backward", 6, returns=False)
    job.call(1, "barrier", 7, returns=False)
    found = difference(job.facts(BRANCH.replace("    if rank == 0:\n            dist.all_reduce(x)\n    ", "")))
    assert found.kind is Kind.UNEVEN or found.kind is Kind.ORDER
    assert {1} <= {rank for side in found.sides for rank in side.ranks}


def test_other_order_in_the_two_parts_of_a_branch() -> None:
    text = "def main():\n    if rank == 0:\n        dist.all_reduce(x)\n    else:\n        dist.broadcast(x, 0)\n"
    job = Job(2)
    job.call(0, "all_reduce", 3, returns=False)
    job.call(1, "broadcast", 5, returns=False, root=0)
    found = difference(job.facts(text))
    assert found.kind is Kind.ORDER
    assert [str(side.place) for side in found.sides] == ["train.py:3", "train.py:5"]


def test_a_rank_that_ended_before_a_collective() -> None:
    job = Job(3).all("barrier", 3)
    job.call(0, "all_reduce", 9, returns=False)
    job.call(2, "all_reduce", 9, returns=False)
    assert kind_of(job) is None, "rank 1 may still come"
    job.leave(1)
    found = difference(job.facts())
    assert (found.kind, found.sides[0].ranks, found.sides[0].state) == (Kind.LEFT, (1,), "left")
    assert found.sides[1].ranks == (0, 2)


def test_a_rank_that_the_rehearsal_ended_is_no_difference() -> None:
    job = Job(2)
    job.call(0, "all_reduce", returns=False)
    job.say(1, "ended", count=3, at=at(12)).say(1, "left", how="ended")
    assert kind_of(job) is None


def test_a_rank_that_raised_is_no_difference() -> None:
    job = Job(2)
    job.call(0, "all_reduce", returns=False)
    job.say(1, "raised", type="ValueError", text="no", at=at(4))
    found = job.facts()
    assert found.difference is None
    assert found.ranks[1].error == "ValueError"


def test_ranks_in_join_may_call_other_numbers_of_collectives() -> None:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "join", on=True)
    job.call(0, "backward")
    job.call(1, "all_reduce")
    assert kind_of(job.leave(1)) is None


def test_groups_are_compared_among_their_members_only() -> None:
    job = Job(4)
    job.call(0, "all_reduce", group="0,1#0", **{"in": tensor(3)})
    job.call(1, "all_reduce", group="0,1#0", **{"in": tensor(3)})
    job.call(2, "all_reduce", group="2,3#0", **{"in": tensor(9)})
    job.call(3, "broadcast", group="2,3#0", **{"in": tensor(9)})
    found = difference(job.facts())
    assert (found.kind, found.group) == (Kind.ORDER, (2, 3))


def test_ranks_that_wait_for_each_other_in_two_groups() -> None:
    job = Job(2)
    job.call(0, "all_reduce", 3, returns=False, group="0,1#0")
    job.call(1, "all_reduce", 4, returns=False, group="0,1#1")
    found = difference(job.facts())
    assert found.kind is Kind.CYCLE
    assert {str(side.place) for side in found.sides} == {"train.py:3", "train.py:4"}


def test_both_receive_first() -> None:
    job = Job(2)
    for rank in (0, 1):
        job.call(rank, "recv", 5, returns=False, p2p="recv", peer=1 - rank, **{"in": tensor(2)})
    assert kind_of(job) is Kind.SEND_ORDER


def test_a_ring_in_which_all_receive_first() -> None:
    job = Job(4)
    for rank in range(4):
        job.call(rank, "recv", 5, returns=False, p2p="recv", peer=(rank - 1) % 4, **{"in": tensor(2)})
    found = difference(job.facts())
    assert found.kind is Kind.SEND_ORDER
    assert len(found.sides) == 4


def test_a_send_without_a_receive() -> None:
    job = Job(2)
    job.call(0, "send", 5, returns=False, p2p="send", peer=1, **{"in": tensor(2)})
    job.leave(1)
    found = difference(job.facts())
    assert (found.kind, str(found.sides[0].place)) == (Kind.UNMATCHED, "train.py:5")


def test_a_receive_after_a_send_that_has_returned_is_matched() -> None:
    job = Job(2)
    job.call(1, "send", 5, p2p="send", peer=0, **{"in": tensor(2)})
    job.leave(1)
    job.call(0, "recv", 6, returns=False, p2p="recv", peer=1, **{"in": tensor(2)})
    assert kind_of(job) is None


@pytest.mark.parametrize(
    ("shape", "dtype", "found"), [((3,), "float32", True), ((2,), "int64", True), ((1, 2), "float32", False)]
)
def test_the_buffer_of_a_receive(shape: tuple[int, ...], dtype: str, found: bool) -> None:
    job = Job(2)
    job.call(0, "send", 5, returns=False, p2p="send", peer=1, tag=0, **{"in": tensor(2)})
    job.call(1, "recv", 6, returns=False, p2p="recv", peer=0, tag=0, **{"in": tensor(*shape, dtype=dtype)})
    assert (kind_of(job) is Kind.BUFFER) is found


def test_a_process_group_that_some_ranks_never_join() -> None:
    job = Job(2)
    job.comparison.tracks[1].joining = None
    job.comparison.tracks[1].has_joined = False
    job.comparison.tracks[0].has_joined = False
    job.leave(1)
    found = difference(job.facts())
    assert found.sides[0].ranks == (1,)
    assert found.sides[1].call is not None
    assert found.sides[1].call.operation == "init_process_group"


def test_a_rank_that_is_busy_while_the_others_wait_is_not_certain() -> None:
    from ddpdoctor.sequences.summary import Circumstances, summary

    job = Job(2)
    job.call(0, "barrier", 9, returns=False)
    assert job.facts().difference is None
    found = summary(job.comparison, {FILE: ""}, Circumstances(is_out_of_time=True))
    assert found.difference is not None
    assert (found.difference.kind, found.difference.is_certain) == (Kind.ABSENT, False)
