"""Where a rank stands, by the environments that launchers make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.probe.rank_env import MOST_NODES, BadEnvironment, node_names, read_rank_env

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[07-08]",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("node07", ["node07"]),
        ("node07,node09", ["node07", "node09"]),
        ("node[07-09,12],gpu1", ["node07", "node08", "node09", "node12", "gpu1"]),
        ("rack[1-2]-ib", ["rack1-ib", "rack2-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("", []),
    ],
)
def test_the_nodes_of_a_slurm_list(nodes: str, names: list[str]) -> None:
    assert list(node_names(nodes)) == names


@given(st.text(alphabet="node[]-,0123456789", max_size=30))
def test_no_node_list_breaks_it(nodes: str) -> None:
    assert len(node_names(nodes)) <= MOST_NODES


def test_a_slurm_task_without_a_master_meets_on_the_first_node_of_its_step() -> None:
    rank_env = read_rank_env(SRUN)
    assert (rank_env.rank, rank_env.world_size, rank_env.local_rank, rank_env.local_world_size, rank_env.node_rank) == (
        3,
        4,
        1,
        2,
        1,
    )
    assert (rank_env.master_addr, rank_env.master_port) == ("node07", 15000 + 4711)


def test_a_node_that_is_missing_has_its_name_from_the_scheduler() -> None:
    rank_env = read_rank_env(SRUN)
    assert (rank_env.host_of(0), rank_env.host_of(1), rank_env.host_of(2)) == ("node07", "node08", None)
    uneven = read_rank_env({**SRUN, "SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "2,1"})
    assert uneven.host_of(0) is None


def test_what_was_exported_counts_before_what_can_be_worked_out() -> None:
    rank_env = read_rank_env({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert (rank_env.master_addr, rank_env.master_port) == ("10.0.0.1", 29500)


def test_half_a_master_is_refused() -> None:
    with pytest.raises(BadEnvironment, match="MASTER_PORT is not set"):
        read_rank_env({**SRUN, "MASTER_ADDR": "10.0.0.1"})


def test_rank_and_world_size_count_before_the_task_numbers_as_in_torch() -> None:
    rank_env = read_rank_env({**SRUN, "RANK": "0", "WORLD_SIZE": "2"})
    assert (rank_env.rank, rank_env.world_size) == (0, 2)


def test_ranks_of_mpi_on_one_node_meet_on_the_loopback() -> None:
    rank_env = read_rank_env(MPI)
    assert (rank_env.rank, rank_env.world_size, rank_env.master_addr) == (1, 2, "127.0.0.1")


def test_ranks_of_mpi_on_several_nodes_need_a_master() -> None:
    with pytest.raises(BadEnvironment, match="MASTER_ADDR is not set"):
        read_rank_env({**MPI, "OMPI_COMM_WORLD_SIZE": "4"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RANK", "a", "RANK='a' is not an integer"),
        ("WORLD_SIZE", "0", "WORLD_SIZE=0 is less than 1"),
        ("WORLD_SIZE", "9" * 20, "is too large for any job"),
        ("LOCAL_RANK", "cuda:0", "LOCAL_RANK='cuda:0' is not an integer"),
        ("RANK", "-1", "RANK=-1 is less than 0"),
        ("MASTER_PORT", "70000", "MASTER_PORT=70000 is not a port"),
        ("MASTER_ADDR", "", "MASTER_ADDR is empty"),
    ],
)
def test_garbage_is_quoted(name: str, value: str, said: str) -> None:
    good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(BadEnvironment, match=said):
        read_rank_env({**good, name: value})


def test_a_login_shell_has_no_rank() -> None:
    with pytest.raises(BadEnvironment, match="it has no rank"):
        read_rank_env({"PATH": "/bin"})
