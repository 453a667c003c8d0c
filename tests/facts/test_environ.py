"""Who started us, which rank we are, and what values mean: over the environments that real launchers make."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.environ import Environ, as_integer, shorten

NOBODY = Environ()


def environ_of(launcher: str) -> Environ:
    environ = machine(f"launcher_{launcher}").environ
    assert environ is not None
    return environ


@pytest.mark.parametrize(
    ("fixture", "name", "rank", "world_size", "local_rank", "local_world_size", "node_rank", "nnodes", "is_multi_node"),
    [
        ("torchrun_worker", "torchrun", 1, 2, 1, 2, 0, 1, False),
        ("torchrun_in_slurm", "torchrun", 3, 4, 1, 2, 1, 2, True),
        ("accelerate_worker", "torchrun", 1, 2, 1, 2, 0, 1, False),
        ("srun_task", "srun", 3, 4, 1, 2, 1, 2, True),
        ("sbatch_body", None, None, 8, None, None, None, None, True),
        ("salloc_shell", None, None, None, None, None, None, None, True),
        ("openmpi_task", "openmpi", 1, 2, 1, 2, None, 1, False),
        ("openmpi_in_slurm", "openmpi", 5, 8, 1, 4, None, 2, True),
        ("mpich_task", "mpich", 1, 2, 1, 2, None, None, False),
        ("deepspeed_worker", "deepspeed", 1, 2, 1, 2, 0, 1, False),
        ("lightning_child", "lightning", None, 2, 1, None, 0, None, None),
        ("pytorchjob_master", "pytorchjob", 0, 2, None, None, 0, 2, True),
        ("pytorchjob_worker", "pytorchjob", 1, 16, None, 8, 1, 2, True),
        ("pai_dlc_pod", "pytorchjob", 1, 2, None, 8, 1, 2, True),
        ("kubeflow_trainer_pod", "kubeflow-trainer", None, None, None, None, 1, 2, True),
        ("ray_train_child", "ray-train", 3, 4, 1, 2, 1, None, True),
        ("sagemaker_host", "sagemaker", None, None, None, 8, 1, 2, True),
        ("jsrun_task", "jsrun", 7, 12, 1, 6, None, None, True),
        ("by_hand_one_node", "by-hand", 1, 2, 1, None, None, None, None),
        ("shell_with_master_only", None, None, None, None, None, None, None, None),
    ],
)
def test_the_innermost_launcher_says_who_we_are(
    fixture: str,
    name: str | None,
    rank: int | None,
    world_size: int | None,
    local_rank: int | None,
    local_world_size: int | None,
    node_rank: int | None,
    nnodes: int | None,
    is_multi_node: bool | None,
) -> None:
    environ = environ_of(fixture)
    assert (environ.launcher.name if environ.launcher else None) == name
    assert (environ.rank, environ.world_size) == (rank, world_size)
    assert (environ.local_rank, environ.local_world_size) == (local_rank, local_world_size)
    assert (environ.node_rank, environ.nnodes) == (node_rank, nnodes)
    assert environ.is_multi_node is is_multi_node


def test_nothing_set_means_nothing_known() -> None:
    assert NOBODY.launcher is None
    assert NOBODY.scheduler is None
    assert NOBODY.is_multi_node is None
    assert NOBODY.rank is NOBODY.world_size is NOBODY.master_addr is NOBODY.master_port is None


def test_a_torchrun_that_is_not_above_us_is_not_our_launcher() -> None:
    left = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1"}
    stale = Environ(left, has_elastic_agent=False)
    unknown = Environ(left)
    assert stale.launcher is not None
    assert stale.launcher.name == "by-hand"
    assert unknown.launcher is not None
    assert unknown.launcher.name == "torchrun"


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "batch", "interactive"])
def test_the_shell_of_salloc_and_the_batch_script_are_no_tasks(step: str) -> None:
    variables = {"SLURM_STEP_ID": step, "SLURM_STEPID": step, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert Environ(variables).launcher is None


@pytest.mark.parametrize(
    ("layout", "node", "tasks"),
    [
        ("2(x2),1", 0, 2),
        ("2(x2),1", 1, 2),
        ("2(x2),1", 2, 1),
        ("2(x2),1", 3, None),
        ("4", 0, 4),
        ("", 0, None),
        ("x", 0, None),
    ],
)
def test_slurm_task_layouts_are_read_node_by_node(layout: str, node: int, tasks: int | None) -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": layout}
    assert Environ(task).local_world_size == tasks


def test_a_task_layout_with_a_huge_repeat_is_no_huge_list() -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x999999999)"}
    assert Environ(task).local_world_size == 8


@pytest.mark.parametrize(
    ("value", "seen"), [("3", 3), (" 3\n", 3), ("-1", -1), ("2.0", None), ("", None), ("9" * 9999, None)]
)
def test_integers_are_read_as_python_reads_them(value: str, seen: int | None) -> None:
    assert Environ({"RANK": value}).integer("RANK") == seen


def test_an_elastic_range_of_nodes_is_several_nodes() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-worker-0:29400"}
    assert Environ(pod).nnodes is None
    assert Environ(pod).is_multi_node is True


@pytest.mark.parametrize(
    ("fixture", "variable", "setter"),
    [
        ("torchrun_in_slurm", "RANK", "torchrun"),
        ("torchrun_in_slurm", "SLURM_PROCID", "Slurm"),
        ("torchrun_in_slurm", "OMP_NUM_THREADS", "torchrun (its default)"),
        ("srun_task", "RANK", "by hand"),
        ("srun_task", "CUDA_VISIBLE_DEVICES", "Slurm"),
        ("deepspeed_worker", "CUDA_VISIBLE_DEVICES", "deepspeed"),
        ("lightning_child", "NODE_RANK", "Lightning"),
        ("pytorchjob_worker", "RANK", "Kubeflow PyTorchJob"),
        ("pytorchjob_worker", "PET_NNODES", "Kubeflow"),
        ("openmpi_task", "OMPI_COMM_WORLD_RANK", "Open MPI (mpirun)"),
        ("openmpi_task", "MASTER_ADDR", "by hand"),
        ("shell_with_master_only", "NCCL_DEBUG", "by hand"),
    ],
)
def test_each_variable_has_the_one_who_set_it(fixture: str, variable: str, setter: str) -> None:
    assert environ_of(fixture).setter(variable) == setter


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "127.0.0.1", "127.0.1.1", "127.1", "::1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"],
)
def test_loopback_has_many_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost0", "127.example.org", "10.0.0.1", "1127.0.0.1", "fd00::1", "node0"])
def test_other_hosts_are_no_loopback(host: str) -> None:
    assert not is_loopback(host)


@settings(max_examples=60)
@given(st.text(max_size=300), st.integers(20, 80))
def test_a_shortened_value_is_one_printable_line(value: str, limit: int) -> None:
    shown = shorten(value, limit)
    assert len(shown) <= limit
    assert all(c.isprintable() for c in shown)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID", "SM_HOSTS", "PET_NNODES"]), st.text()
    )
)
def test_no_value_makes_the_facts_fail(variables: dict[str, str]) -> None:
    environ = Environ(variables)
    for word in (
        "rank",
        "world_size",
        "local_world_size",
        "node_rank",
        "nnodes",
        "is_multi_node",
        "launchers",
        "scheduler",
    ):
        getattr(environ, word)
    assert as_integer(environ.get("RANK")) == environ.integer("RANK")
