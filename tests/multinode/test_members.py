"""Who is here and whether that is enough, for every mixture of nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode.link_tests import partners
from ddpdoctor.multinode.members import (
    Member,
    SessionState,
    assess,
    contradicts,
    lacks_its_script,
    missing,
    ordered,
    still_gone,
)
from ddpdoctor.multinode.messages import WireError


def static(rank: int, nnodes: int = 2, **more: Any) -> Member:
    node = Node(f"host{rank}", node_rank=rank, nnodes=nnodes, least=nnodes, owns=rank == 0, master_port=29500, **more)
    return Member(f"key{rank}{more}", node)


def ranked(rank: int, world_size: int = 2, **more: Any) -> Member:
    node = Node(f"host{rank}", form=Form.ENV, rank=rank, world_size=world_size, owns=rank == 0, **more)
    return Member(f"key{rank}{more}", node)


def elastic(index: int, least: int, most: int) -> Member:
    return Member(f"key{index}", Node(f"host{index}", form=Form.C10D, nnodes=most, least=least, owns=index == 0))


@pytest.mark.parametrize(
    ("members", "state"),
    [
        ([static(0)], SessionState.WAITING),
        ([static(0), static(1)], SessionState.COMPLETE),
        ([static(1), static(0)], SessionState.COMPLETE),
        ([static(0, 3), static(1, 3)], SessionState.WAITING),
        ([static(0, 2), static(1, 3)], SessionState.CONTRADICTING),
        ([static(0, 3), static(1, 3), static(1, 3, machine="b")], SessionState.COMPLETE),
        ([static(0), static(2)], SessionState.CONTRADICTING),
        ([static(0), static(1), static(2)], SessionState.COMPLETE),
        ([static(0), static(1, way=ConnectOutcome.NO_ANSWER)], SessionState.COMPLETE),
        ([ranked(0, 4), ranked(1, 4), ranked(2, 3)], SessionState.CONTRADICTING),
        ([ranked(1), ranked(2)], SessionState.CONTRADICTING),
        ([elastic(0, 1, 4)], SessionState.ENOUGH),
        ([elastic(0, 2, 4)], SessionState.WAITING),
        ([elastic(k, 2, 4) for k in range(4)], SessionState.COMPLETE),
    ],
)
def test_the_host_knows_whether_to_wait(members: list[Member], state: SessionState) -> None:
    assert assess(members) is state


def test_only_what_cannot_work_is_a_contradiction() -> None:
    assert not contradicts([static(0, 3), static(1, 3)])
    assert contradicts([static(0), static(1, rdzv_id="other")])
    assert contradicts([static(1), static(2)])


def test_who_is_missing_is_known_by_number_where_nodes_have_numbers() -> None:
    assert missing([member.node for member in (static(0, 4), static(2, 4))]) == (1, 3)
    assert missing([elastic(0, 3, 3).node]) == ()


def test_guests_stand_in_the_order_of_their_numbers_and_the_stores_owner_first() -> None:
    assert [member.node.host for member in ordered([static(1), static(0)])] == ["host0", "host1"]
    assert [member.node.host for member in ordered([elastic(1, 2, 2), elastic(0, 2, 2)])] == ["host0", "host1"]


def test_a_hello_comes_back_as_it_was_sent() -> None:
    member = static(1, addresses=("10.0.0.1",))
    assert Member.of(member.hello("token")) == member


@given(
    st.dictionaries(
        st.sampled_from(["key", "node", "errors", "line", "echo_port", "clock"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_what_is_no_hello_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        Member.of(message)


@pytest.mark.parametrize("count", [2, 64, 65, 1000])
def test_every_node_is_tried_by_as_many_as_it_tries(count: int) -> None:
    tried = [other for index in range(count) for other in partners(index, count)]
    assert len(set(partners(0, count))) == len(partners(0, count)) <= 63
    assert all(tried.count(index) == len(partners(0, count)) for index in (0, count // 2, count - 1))


def test_a_node_that_gave_up_and_came_after_all_is_no_absentee() -> None:
    here = [Member(f"key{n}", Node(f"host{n}", node_rank=n, nnodes=3, least=3)) for n in (0, 1)]
    gone = [Member(f"gone{n}", Node(f"host{n}", node_rank=n)) for n in (1, 2)]
    assert [each.key for each in still_gone(gone, here)] == ["gone2"]
    assert still_gone(gone, [*here, Member("key2", Node("host2", node_rank=2, nnodes=3, least=3))]) == []


@pytest.mark.parametrize(
    ("told", "is_ours"),
    [
        (static(1, script="trian.py", script_hash=""), True),
        (static(1, script="other.py", script_hash="b"), False),
        (static(0, script="trian.py", script_hash=""), False),
        (static(1, 3, script="trian.py", script_hash=""), False),
    ],
    ids=["a-name-that-leads-nowhere", "a-script-of-its-own", "a-place-that-is-taken", "a-job-of-another-size"],
)
def test_a_node_whose_script_is_missing_may_be_of_this_job(told: Member, is_ours: bool) -> None:
    assert lacks_its_script(told.node, [static(0, script="train.py", script_hash="a")]) is is_ours
