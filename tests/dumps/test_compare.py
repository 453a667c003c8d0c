"""What the dumps of several ranks say together: who never came, what does not fit, who waits for whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flight_dumps import START_NS, as_json, call, dump, older
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.dumps.compare import compare
from ddpdoctor.dumps.conflict import Conflict, ConflictCause
from ddpdoctor.dumps.flight_recorder import dump_of
from ddpdoctor.dumps.selection import choose
from ddpdoctor.facts.hang import Dump

WORLD = {"0": [0, 1, 2]}
START = [call("all_reduce"), call("broadcast", line=15), call("broadcast", line=17)]


def _read(raws: dict[int, Any]) -> list[Dump]:
    return [dump_of(f"nccl_trace_rank_{rank}", raw) for rank, raw in raws.items()]


def _compare(raws: dict[int, Any]) -> list[Conflict]:
    return list(compare(_read(raws)))


def _only(raws: dict[int, Any]) -> Conflict:
    (found,) = _compare(raws)
    return found


def _missing(**more: Any) -> dict[int, Any]:
    waits = [*START, call("all_reduce", line=21, state="started")]
    return {0: dump(waits, **more), 1: dump(START, **more), 2: dump(waits, **more)}


def test_a_rank_that_never_called_is_named_with_its_last_call() -> None:
    found = _only(_missing(groups=WORLD))
    assert found.message == (
        "seq 4: ranks 0, 2 wait in all_reduce([4]) at train.py:21; "
        "rank 1 never called it: its last was seq 3 broadcast([4]) at train.py:17"
    )
    assert (found.cause, found.ranks, found.waiting) == (ConflictCause.MISSING, (1,), (0, 2))


@pytest.mark.parametrize("version", ["1.5", "2.3", "2.4"])
def test_old_formats_say_the_same(version: str) -> None:
    raws = {rank: older(raw, version) for rank, raw in _missing(groups=WORLD).items()}
    assert _only(raws).ranks == (1,)


def test_json_says_the_same_without_the_place() -> None:
    raws = {rank: json.loads(as_json(raw)) for rank, raw in _missing(groups=WORLD).items()}
    assert _only(raws).message.startswith("seq 4: ranks 0, 2 wait in all_reduce([4]); rank 1 never called it")


def test_versions_may_be_mixed() -> None:
    raws = _missing(groups=WORLD)
    assert _only({**raws, 1: older(raws[1], "2.3")}).ranks == (1,)


def test_a_timed_out_call_counts_as_waiting() -> None:
    waits = [*START, call("all_reduce", state="scheduled", retired=True)]
    assert _only({0: dump(waits), 1: dump(START), 2: dump(waits)}).ranks == (1,)


def test_gloo_retires_what_failed() -> None:
    done = [call(c["profiling_name"], state="scheduled", retired=True, line=c["frames"][1]["line"]) for c in START]
    waits = [*done, call("all_reduce", state="scheduled", retired=True)]
    raws = {0: dump(waits, backend="gloo"), 1: dump(done, backend="gloo"), 2: dump(waits, backend="gloo")}
    assert (_only(raws).cause, _only(raws).ranks) == (ConflictCause.MISSING, (1,))


def test_the_ring_has_forgotten_different_beginnings() -> None:
    raws = _missing(groups=WORLD, first=5000)
    raws[0]["entries"] = raws[0]["entries"][2:]
    assert _only(raws).ranks == (1,)


def test_a_rank_whose_dump_is_not_there_is_the_suspect() -> None:
    raws = _missing(groups=WORLD)
    del raws[1]
    found = _only(raws)
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.NO_DUMP, (1,), False)
    assert "rank 1 left no dump" in found.message


def test_most_dumps_missing_blames_nobody() -> None:
    raws = {0: dump([call("all_reduce", state="started")], groups={"0": range(8)})}
    assert _only(raws).ranks == ()


def test_of_a_dump_that_breaks_off_it_is_not_known_whether_its_rank_is_late() -> None:
    from dataclasses import replace

    dumps = _read(_missing(groups=WORLD))
    dumps[1] = replace(dumps[1], problem="breaks off")
    (found,) = compare(dumps)
    assert (found.cause, found.ranks, found.waiting, found.is_certain) == (ConflictCause.MISSING, (1,), (0, 2), False)
    assert "the dump of rank 1 ends before this call: unknown whether it made it" in found.message


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (call("all_reduce", ((5,),), state="started", line=23), ConflictCause.SHAPE),
        (call("all_reduce", dtype="Half", state="started", line=23), ConflictCause.DTYPE),
        (call("broadcast", state="started", line=23), ConflictCause.ORDER),
    ],
)
def test_a_call_that_does_not_fit_is_named(other: dict[str, Any], cause: ConflictCause) -> None:
    usual = [*START, call("all_reduce", state="started", line=21)]
    found = _only({0: dump(usual), 1: dump([*START, other]), 2: dump(usual)})
    assert (found.cause, found.ranks, found.sequence) == (cause, (1,), 4)
    assert "rank 1 called" in found.message
    assert "train.py:23" in found.message
    assert found.op is not None
    assert (found.op.file, found.op.line) == ("/job/train.py", 23)


def test_of_two_ranks_both_are_named() -> None:
    one, other = call("all_reduce", state="started"), call("all_reduce", ((5,),), state="started")
    assert _only({0: dump([one]), 1: dump([other])}).ranks == (0, 1)


def _steps(*names: str, last: str = "started") -> list[dict[str, Any]]:
    lines = {"a": 1, "b": 2, "c": 3, "d": 4}
    ops = {"a": "all_reduce", "b": "broadcast", "c": "reduce_scatter", "d": "barrier"}
    return [
        call(ops[n], ((lines[n],),), line=lines[n], state=last if i >= 1 else "completed") for i, n in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("odd", "cause"),
    [("acd", ConflictCause.SKIPPED), ("adbcd", ConflictCause.EXTRA), ("acbd", ConflictCause.ORDER)],
)
def test_what_follows_tells_a_call_too_few_or_too_many_from_another_order(odd: str, cause: ConflictCause) -> None:
    found = _only({0: dump(_steps(*"abcd")), 1: dump(_steps(*odd)), 2: dump(_steps(*"abcd"))})
    assert (found.cause, found.ranks, found.sequence, found.is_certain) == (cause, (1,), 2, True)


def test_sizes_may_differ_where_they_are_meant_to() -> None:
    def rank(number: int) -> dict[str, Any]:
        return dump(
            [
                call("all_to_all", ((4 + number,),), outputs=((9 - number,),), state="started"),
                call("gather", outputs=((3, 4),) if number == 0 else (), state="started"),
                call("all_reduce", ((2, 3),) if number else ((6,),), state="started"),
                call("barrier", (), state="started"),
            ]
        )

    assert [each.cause for each in _compare({0: rank(0), 1: rank(1)})] == [ConflictCause.TOGETHER]


def test_what_nccl_completed_was_meant() -> None:
    assert _compare({0: dump([call("broadcast", ((4,),))]), 1: dump([call("broadcast", ((5,),))])}) == []


def test_a_healthy_job_has_no_conflict() -> None:
    assert _compare({rank: dump(START, groups=WORLD) for rank in range(3)}) == []


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    def rank(number: int) -> dict[str, Any]:
        members = [0, 1] if number < 2 else [2, 3]
        sizes = ((4,),) if number < 2 else ((8,),)
        calls = [call("all_reduce", sizes, group=("7", "dp"), state="started" if number != 3 else "scheduled")]
        return dump(calls if number != 3 else [], groups={"0": range(4), "7": members})

    found = _compare({number: rank(number) for number in range(4)})
    assert [(each.cause, each.ranks) for each in found] == [(ConflictCause.MISSING, (3,))]
    assert "process group 'dp' (ranks 2, 3), seq 1" in found[0].message


def test_the_end_of_the_chain_is_to_blame_not_those_who_wait_in_it() -> None:
    groups = {"0": range(4), "1": [0, 1], "2": [1, 2], "3": [2, 3]}
    raws = {
        0: dump([call("all_reduce", group=("1", "a"), state="started")], groups=groups),
        1: dump([call("all_reduce", group=("2", "b"), state="started")], groups=groups),
        2: dump([call("all_reduce", group=("3", "c"), state="started")], groups=groups),
        3: dump([], groups=groups),
    }
    found = _only(raws)
    assert found.ranks == (3,)
    assert "ranks 0, 1 wait in other calls" in found.message


def test_groups_entered_in_different_orders_are_a_circle() -> None:
    groups = {"0": range(2), "1": [0, 1], "2": [0, 1]}
    raws = {
        0: dump([call("all_reduce", group=("1", "a"), state="started")], groups=groups),
        1: dump([call("all_reduce", group=("2", "b"), state="started")], groups=groups),
    }
    found = _only(raws)
    assert (found.cause, found.ranks) == (ConflictCause.CYCLE, (0, 1))
    assert found.message.endswith("they wait for each other")


def test_members_that_no_dump_tells_are_no_excuse_for_silence() -> None:
    def rank(group: tuple[str, str] | None) -> dict[str, Any]:
        return dump([call("barrier", ()), call("barrier", (), group=group or ("0", "default_pg"), state="scheduled")])

    rows_and_columns = [rank((name, "undefined")) for name in "3124"]
    found = _only(dict(enumerate(_of_gloo(rows_and_columns, 4))))
    assert (found.cause, found.ranks) == (ConflictCause.CYCLE, (0, 1, 2, 3))
    found = _only(dict(enumerate(_of_gloo([rank(("1", "all")), rank(None), rank(("1", "all"))], 3))))
    assert (found.cause, found.ranks, found.waiting) == (ConflictCause.CYCLE, (1,), (0, 2))
    done = dump([call("barrier", ())])
    found = _only(dict(enumerate(_of_gloo([rank(("1", "tp")), done, done], 3))))
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.MISSING, (), False)


def _of_gloo(raws: list[dict[str, Any]], world: int) -> list[dict[str, Any]]:
    """As Gloo dumps them: only the default group has its ranks told, if any, and what has not been waited for is scheduled."""
    return [
        {**raw, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(world)])}}} for raw in raws
    ]


def test_the_default_group_is_one_also_where_some_dumps_do_not_tell_its_ranks() -> None:
    done = call("barrier", (), state="scheduled", retired=True)
    raws = {rank: dump([done, done], backend="gloo") for rank in range(4)}
    for rank, ranks in ((0, "[]"), (1, "[]"), (2, "[0, 1, 2, 3]"), (3, "[0, 1, 2, 3]")):
        raws[rank]["pg_config"] = {"": {"name": "", "desc": "", "ranks": ranks}}
    assert _compare(raws) == []


def test_a_call_with_a_root_that_ended_on_some_ranks_only() -> None:
    ahead = dump([call("broadcast"), call("barrier", (), state="started")], groups=WORLD)
    found = _only({0: ahead, 1: dump([call("broadcast", state="started")], groups=WORLD), 2: ahead})
    assert (found.cause, found.ranks) == (ConflictCause.MISSING, (1,))
    assert "another src" in found.message


def test_two_ranks_that_both_send_first() -> None:
    raws = {
        0: dump([call("send 0->1", state="started")], groups={"0": range(2)}),
        1: dump([call("send 1->0", state="started")], groups={"0": range(2)}),
    }
    assert _only(raws).cause is ConflictCause.SEND_ORDER


def test_a_send_that_nobody_receives() -> None:
    raws = {0: dump([call("send 0->1", state="started")], groups={"0": range(2)}), 1: dump([call("all_reduce", seq=1)])}
    raws[1]["pg_config"] = raws[0]["pg_config"]
    found = _only(raws)
    assert (found.cause, found.ranks) == (ConflictCause.NO_RECEIVER, (1,))


def test_sends_and_receives_of_a_batch_end_with_it() -> None:
    def rank(me: int, other: int) -> dict[str, Any]:
        parts = [
            call(f"send {me}->{other}", state="scheduled", seq=1),
            call(f"recv {me}<-{other}", state="scheduled", seq=1),
        ]
        return dump([*parts, call("coalesced p2p", (), seq=1)], groups={"0": range(2)})

    assert _compare({0: rank(0, 1), 1: rank(1, 0)}) == []


def test_a_kernel_that_never_started_points_at_that_gpu() -> None:
    raws = {
        rank: dump([call("all_reduce", state="scheduled" if rank == 2 else "started")], groups=WORLD)
        for rank in range(3)
    }
    found = _only(raws)
    assert (found.cause, found.ranks) == (ConflictCause.NOT_STARTED, (2,))


def test_all_in_one_call_blames_nobody() -> None:
    raws = {r: dump([call("all_reduce", state="scheduled", retired=True)], groups=WORLD) for r in range(3)}
    found = _only(raws)
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.TOGETHER, (), True)


def test_a_rank_that_is_one_call_ahead_was_dumped_later_and_the_only_one_behind_is_to_blame() -> None:
    def raws(ahead: set[int]) -> dict[int, Any]:
        first, open_call = call("all_reduce"), call("all_reduce", state="started")
        return {r: dump([first, open_call] if r in ahead else [open_call], groups=WORLD) for r in range(3)}

    found = _only(raws({2}))
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.TOGETHER, (), False)
    found = _only(raws({1, 2}))
    assert (found.cause, found.ranks) == (ConflictCause.MISSING, (0,))


def test_a_dump_of_an_earlier_moment_makes_nobody_late_while_the_others_move() -> None:
    done, open_call = call("all_reduce"), call("all_reduce", state="started")

    def raws(*counts: int, opened: tuple[int, ...]) -> dict[int, Any]:
        return {r: dump([done] * n + [open_call] * (r in opened), groups=WORLD) for r, n in enumerate(counts)}

    found = _only(raws(4, 9, 9, opened=(1,)))
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.MISSING, (2,), False)
    assert "rank 0 was taken earlier" in found.message
    found = _only(raws(4, 9, 7, opened=(1,)))
    assert (found.cause, found.ranks) == (ConflictCause.MISSING, (0, 2))
    found = _only(raws(4, 9, 9, opened=(1, 2)))
    assert (found.cause, found.ranks) == (ConflictCause.MISSING, (0,))
    assert _compare(raws(4, 9, 8, opened=())) == []


def test_a_dump_that_ends_long_before_what_the_others_came_out_of_blames_nobody_for_certain() -> None:
    done, open_call = call("all_reduce"), call("all_reduce", state="started")
    found = _only({r: dump([done] * (3 if r == 1 else 9) + [open_call], groups=WORLD) for r in range(3)})
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.MISSING, (1,), False)
    assert "from an earlier moment or run" in found.message


def test_ranks_that_seem_to_wait_in_a_circle_while_the_job_moves_are_not_blamed() -> None:
    mine, ours = ("1", "pair"), ("0", "default_pg")
    groups = {"0": [0, 1, 2], "1": [0, 2]}

    def steps(count: int, opened: tuple[str, str]) -> Any:
        calls = [call("all_reduce", group=group) for _ in range(count) for group in (mine, ours)]
        last = [call("all_reduce", group=mine)] if opened == ours else []
        return dump([*calls, *last, call("all_reduce", group=opened, state="started")], groups=groups)

    first = dump([call("all_reduce")] * 4 + [call("all_reduce", state="started")], groups=WORLD)
    found = _only({0: steps(3, mine), 1: first, 2: steps(8, mine)})
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.NO_DUMP, (), False)


def test_a_loop_that_one_rank_leaves_a_round_earlier_is_told_from_another_order() -> None:
    step, end = call("all_reduce", line=93), call("barrier", line=95, state="scheduled")
    more = call("all_reduce", line=93, state="scheduled")
    found = _only({r: dump([step] * 4 + [end if r == 2 else more], groups=WORLD) for r in range(3)})
    assert (found.cause, found.ranks, found.is_certain) == (ConflictCause.SKIPPED, (2,), False)
    assert "fewer iterations" in found.message
    found = _only({r: dump([step] * 4 + [more if r == 2 else end], groups=WORLD) for r in range(3)})
    assert (found.cause, found.ranks) == (ConflictCause.EXTRA, (2,))


@pytest.mark.parametrize(("theirs", "cause"), [([[8]], ConflictCause.SHAPE), ([[4]], ConflictCause.TOGETHER)])
def test_both_ends_of_an_open_message_are_compared(theirs: list[list[int]], cause: ConflictCause) -> None:
    found = _only(
        {
            0: dump([call("send 0->1", [[4]], state="started")], groups={"0": [0, 1]}),
            1: dump([call("recv 1<-0", theirs, state="started")], groups={"0": [0, 1]}),
        }
    )
    assert (found.cause, found.is_certain) == (cause, cause is ConflictCause.SHAPE)


def test_an_older_runs_dump_and_a_second_one_are_left_out() -> None:
    raws = _missing(groups=WORLD)
    stale = dump_of("old/nccl_trace_rank_1", dump(START[:1], groups=WORLD, start_ns=START_NS - 10**13))
    second = dump_of("nccl_trace_rank_5", dump(START[:1], start_ns=START_NS - 10**14))
    chosen, left = choose([*_read(raws), stale, second])
    assert [each.source for each in chosen] == [f"nccl_trace_rank_{rank}" for rank in range(3)]
    assert any("newer dump" in words for words in left)
    assert any("from an earlier run" in words for words in left)


def test_folders_tell_the_ranks_where_they_are_just_those_that_are_missing() -> None:
    raws = _missing(groups=WORLD)
    dumps = [dump_of(f"pod-worker-{rank}/dump.pkl", raw) for rank, raw in raws.items()]
    assert [(each.cause, each.ranks) for each in compare(dumps)] == [(ConflictCause.MISSING, (1,))]
    dated = [dump_of(f"fr/trace_{rank}_20261122.pkl", raw) for rank, raw in raws.items()]
    assert [each.rank for each in choose(dated)[0]] == [0, 1, 2]
    assert len(choose([dump_of(f"try-{rank + 4}/dump.pkl", raw) for rank, raw in raws.items()])[1]) == 3


def test_the_only_dump_without_a_rank_gets_the_only_rank_that_is_missing() -> None:
    dumps = _read(_missing(groups=WORLD))
    from dataclasses import replace

    dumps[1] = replace(dumps[1], rank=None, source="upload.bin")
    assert [each.ranks for each in compare(dumps)] == [(1,)]


def test_what_is_queued_behind_an_open_call_blames_nobody() -> None:
    def rank(number: int) -> dict[str, Any]:
        return dump([*START, *[call("all_reduce", state="scheduled")] * (3 - number)], groups=WORLD)

    assert [each.cause for each in _compare({number: rank(number) for number in range(3)})] == [ConflictCause.TOGETHER]


def test_an_open_part_before_calls_that_ended_is_no_wait() -> None:
    calls = [call("all_reduce", state="scheduled"), call("broadcast"), call("all_reduce")]
    assert _compare({0: dump(calls, groups=WORLD), 1: dump(calls, groups=WORLD), 2: dump(calls, groups=WORLD)}) == []


OPS = st.builds(
    call,
    st.sampled_from(["all_reduce", "broadcast", "barrier", "send 0->1", "recv 1<-0", "coalesced", "gather", "?"]),
    st.lists(st.lists(st.integers(0, 5), max_size=2), max_size=2),
    line=st.integers(1, 3),
    state=st.sampled_from(["scheduled", "started", "completed", "?"]),
    dtype=st.sampled_from(["Float", "Half"]),
    group=st.sampled_from([("0", "default_pg"), ("1", "dp"), ("", "")]),
    retired=st.sampled_from([True, False, None]),
    seq=st.sampled_from([None, None, 1, 2, 7]),
)


@given(
    st.dictionaries(st.integers(0, 4), st.lists(OPS, max_size=6), max_size=4),
    st.sampled_from(["nccl", "gloo", "xccl", ""]),
    st.none() | st.dictionaries(st.sampled_from(["0", "1", ""]), st.lists(st.integers(0, 5), max_size=4)),
    st.integers(0, 3),
)
def test_whatever_the_dumps_hold_they_are_compared(calls: Any, backend: str, groups: Any, first: int) -> None:
    raws = {rank: dump(each, backend=backend, groups=groups, first=first) for rank, each in calls.items()}
    for found in _compare(raws):
        assert set(found.ranks) <= set(range(6))
        assert found.message
