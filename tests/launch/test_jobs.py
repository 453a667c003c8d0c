"""The job of launch lines: its ranks, their numbers, and what the nodes agree on."""

from __future__ import annotations

import pytest

from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.job import Job
from ddpdoctor.launch.jobs import job_of_launch
from ddpdoctor.system.machine import Machine


def _job(*lines: str) -> Job:
    return job_of_launch(collect_launch(Machine(environ={}), None, lines, torch="2.13", cwd="/job"))


def test_static_ranks_are_numbered_by_node() -> None:
    line = "torchrun --nnodes=2 --nproc_per_node=2 --node_rank={} --master_addr=a a.py --lr 1"
    job = _job(line.format(0), line.format(1))
    assert [(p.node, p.rank, p.local_rank, p.world_size) for p in job.processes] == [
        (0, 0, 0, 4),
        (0, 1, 1, 4),
        (1, 2, 0, 4),
        (1, 3, 1, 4),
    ]
    assert {p.argv for p in job.processes} == {("a.py", "--lr", "1")}
    assert (job.launcher, job.name) == ("torchrun", "a.py")
    assert (job.rendezvous.backend, job.rendezvous.host, job.rendezvous.port) == ("static", "a", 29500)
    assert job.processes[-1].evidence == "launch.lines[1]"


def test_c10d_numbers_nobody_before_the_nodes_join() -> None:
    line = "torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint={}:29400 a.py"
    job = _job(line.format("a"), line.format("b"))
    assert {p.rank for p in job.processes} == {None}
    assert (job.rendezvous.backend, job.rendezvous.host, job.rendezvous.port) == ("c10d", None, 29400)


def test_what_is_not_known_has_no_ranks() -> None:
    assert _job("torchrun --nproc_per_node=gpu a.py").processes == ()
    assert _job("torchrun --nproc_per_node=$N a.py").processes == ()
    assert _job("python a.py") == Job()
    assert len(_job("torchrun --nproc_per_node=99999999 a.py").processes) == 64


def test_a_job_survives_json() -> None:
    job = _job("torchrun --nproc_per_node=2 a.py")
    assert decode(Job, encode(job)) == job


@pytest.mark.parametrize(
    ("line", "per_node", "world_size"),
    [
        ("torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=a:1 a.py", 8, 16),
        ("torchrun --nnodes=1:4 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=a:1 a.py", 8, 32),
        ("torchrun --nproc_per_node=gpu a.py", None, None),
        ("accelerate launch --num_processes 4 a.py", 4, None),
        ("accelerate launch --num_processes 8 --num_machines 2 --machine_rank 0 --main_process_ip a a.py", 4, 8),
        ("deepspeed --num_gpus 4 a.py", 4, None),
        ("srun --nodes=2 --ntasks-per-node=8 python a.py", 8, 16),
        ("srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8 a.py", 8, 16),
        ("python a.py", None, None),
    ],
)
def test_the_ranks_of_a_node_and_of_the_job_are_counted(
    line: str, per_node: int | None, world_size: int | None
) -> None:
    job = _job(line)
    assert (job.ranks_per_node, job.world_size) == (per_node, world_size)
