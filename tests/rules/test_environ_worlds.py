"""The rules of the environment over worlds of any shape: healthy ones are silent, and no text makes a rule fail."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.variables import MEANINGS, PET_OPTIONS
from ddpdoctor.rules import load

RULES = [each for each in load(("environ",)) if each.needs in ((), ("environ",))]
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(0, 7), st.integers(0, 7)).filter(
    lambda s: s[2] < s[0] and s[3] < s[1]
)
"""Nodes, ranks a node, the node and the local rank of one process."""


def judged(variables: dict[str, str], has_elastic_agent: bool | None = None) -> Outcome:
    environ = {"variables": variables, "has_elastic_agent": has_elastic_agent}
    return judge(machine("cpu_vm", {"environ": environ}), RULES)


def numbers(nodes: int, local: int, node: int, local_rank: int) -> dict[str, str]:
    where = {"MASTER_ADDR": "node0" if nodes > 1 else "127.0.0.1", "MASTER_PORT": "29500"}
    rank = node * local + local_rank
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(nodes * local), **where}


def slurm(nodes: int, local: int, node: int, local_rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(node * local + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(nodes * local),
        "SLURM_STEP_NUM_TASKS": str(nodes * local),
        "SLURM_NNODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"{local}(x{nodes})",
        "SLURMD_NODENAME": f"node{node}",
    }


def silent(outcome: Outcome) -> bool:
    assert not outcome.crashed, outcome.crashed
    assert not outcome.findings, [f.message for f in outcome.findings]
    return True


@settings(max_examples=50)
@given(SHAPES)
def test_worlds_set_by_hand_are_silent(shape: tuple[int, int, int, int]) -> None:
    assert silent(judged(numbers(*shape)))


@settings(max_examples=50)
@given(SHAPES)
def test_tasks_of_srun_are_silent_with_and_without_exported_ranks(shape: tuple[int, int, int, int]) -> None:
    assert silent(judged(slurm(*shape)))
    assert silent(judged({**slurm(*shape), **numbers(*shape)}))


@settings(max_examples=50)
@given(SHAPES, st.integers(0, 3))
def test_workers_of_torchrun_inside_srun_are_silent(shape: tuple[int, int, int, int], restarts: int) -> None:
    nodes, local, node, _ = shape
    worker = {
        **slurm(nodes, 1, node, 0),
        **numbers(*shape),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "TORCHELASTIC_RUN_ID": "7",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
    }
    assert silent(judged(worker, has_elastic_agent=True))


@settings(max_examples=50)
@given(SHAPES)
def test_tasks_of_mpirun_are_silent(shape: tuple[int, int, int, int]) -> None:
    nodes, local, node, local_rank = shape
    task = {
        "OMPI_COMM_WORLD_RANK": str(node * local + local_rank),
        "OMPI_COMM_WORLD_SIZE": str(nodes * local),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
    }
    assert silent(judged({**task, **numbers(*shape)}))


@settings(max_examples=50)
@given(SHAPES)
def test_a_rank_beyond_the_world_never_passes(shape: tuple[int, int, int, int]) -> None:
    variables = numbers(*shape)
    variables["RANK"] = variables["WORLD_SIZE"]
    found = {f.code for f in judged(variables).findings}
    assert "ENV001" in found
    assert found <= {"ENV001"}


NAMES = st.sampled_from(sorted({*MEANINGS, *PET_OPTIONS, "PET_N_PROC_PER_NODE", "TORCHELASTIC_RUN_ID"}))
VALUES = st.one_of(st.text(max_size=40), st.integers(-2, 10**20).map(str), st.just("x" * 1000), st.just("127.0.0.1"))


@settings(max_examples=100)
@given(st.dictionaries(NAMES, VALUES, max_size=12), st.sampled_from([None, True, False]))
def test_no_environment_makes_a_rule_fail_or_talk_without_end(variables: dict[str, str], agent: bool | None) -> None:
    outcome = judged(variables, agent)
    assert not outcome.crashed, outcome.crashed
    for finding in outcome.findings:
        assert len(finding.message) < 700
        assert finding.message.isprintable()
