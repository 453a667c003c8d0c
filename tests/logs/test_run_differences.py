"""What only the failed run has: settings, versions, transports, hosts, and kinds of lines before the failure."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.examined import RunDifference
from ddpdoctor.logs.run_differences import run_differences
from ddpdoctor.logs.run_features import RunFeatures


def _features(*lines: str, source: str = "job.log") -> RunFeatures:
    features = RunFeatures()
    for number, line in enumerate(lines, 1):
        features.take(source, number, line)
    return features


def _found(
    bad: Sequence[str], good: Sequence[str], end: int = 1000, blamed: frozenset[str] = frozenset()
) -> dict[tuple[str, str], RunDifference]:
    found = run_differences(_features(*bad), [_features(*good)], {"job.log": end}, blamed)
    return {(each.kind, each.name): each for each in found}


def test_settings_of_variables_options_and_nccl() -> None:
    found = _found(
        ["export NCCL_ALGO=Tree", "torchrun --nnodes 4 train.py --lr=0.1", "[0] NCCL INFO NCCL_IB_HCA set to mlx5_3."],
        ["export NCCL_ALGO=Ring", "torchrun --nnodes 2 train.py --lr=0.1", "[0] NCCL INFO NCCL_IB_HCA set to mlx5_0."],
    )
    assert {name: (each.failed, each.good) for (_, name), each in found.items()} == {
        "NCCL_ALGO": ("Tree", "Ring"),
        "--nnodes": ("4", "2"),
        "NCCL_IB_HCA": ("mlx5_3", "mlx5_0"),
    }
    assert found["setting", "NCCL_ALGO"].place == "job.log:1"


def test_what_differs_between_any_two_runs_is_no_difference() -> None:
    bad = [
        "SLURM_JOB_ID=12",
        "MASTER_PORT_PID=99",
        "step 1 loss 0.5",
        "torchrun train.py --run-id a7 --output_dir /x/1",
    ]
    good = [
        "SLURM_JOB_ID=11",
        "MASTER_PORT_PID=98",
        "step 9 loss 0.1",
        "torchrun train.py --run-id a6 --output_dir /x/2",
    ]
    assert _found(bad, good) == {}


def test_versions_and_transports() -> None:
    found = _found(
        ["NCCL version 2.21.5+cuda12.4", "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"],
        ["NCCL version 2.19.3+cuda12.3", "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"],
    )
    assert found["version", "nccl"].failed == "2.21.5+cuda12.4"
    assert found["transport", "channels"].good == "P2P/IPC"


def test_only_lines_before_the_failure_count_and_those_of_one_rank_more() -> None:
    steps = [f"[rank{rank}]: step {step} took 0.1 s" for step in range(5) for rank in range(4)]
    bad = [*steps, "[rank2]: link degraded on mlx5_2", "[rank2]: Traceback", "[rank1]: connection reset by a peer"]
    found = _found(bad, steps, end=len(steps) + 2)
    assert [name for _, name in found] == ["link degraded on mlx5_2"]
    assert "by rank 2 only" in found["line", "link degraded on mlx5_2"].failed


def test_a_line_that_is_usual_counts_where_it_is_far_more_frequent() -> None:
    often, seldom = ["warning: the queue is slow"] * 30, ["warning: the queue is slow"]
    assert "at most" not in _found(often, seldom)["line", seldom[0]].good
    assert _found(often, seldom)["line", seldom[0]].good == "once"
    assert _found(seldom * 9, seldom) == {}


def test_a_new_host_counts_only_where_the_runs_share_others() -> None:
    def line(host: str) -> str:
        return f"{host}:10:10 [0] NCCL INFO Bootstrap: Using eth0"

    both = [line("node1"), line("node2")]
    assert ("host", "node9") in _found([*both, line("node9")], both)
    assert _found([line("node8"), line("node9")], both) == {}
    assert next(iter(_found([*both, line("node9")], both, blamed=frozenset({"node9"})))) == ("host", "node9")


def test_a_value_of_one_host_alone_is_an_outlier() -> None:
    lines = [f"node{i}:10:10 [0] NCCL INFO cudaDriverVersion {12020 if i == 3 else 12040}" for i in range(4)]
    found = _found(lines, lines[:3])
    assert found["version", "cudaDriverVersion"].failed == "12020 on node3"
    assert found["version", "cudaDriverVersion"].hosts == ("node3",)


@given(st.lists(st.text(max_size=80), max_size=20), st.lists(st.text(max_size=80), max_size=20))
def test_any_lines_have_a_bounded_number_of_differences(bad: list[str], good: list[str]) -> None:
    assert len(run_differences(_features(*bad), [_features(*good)], {})) <= 12
    assert run_differences(_features(*bad), [_features(*bad)], {}) == ()
