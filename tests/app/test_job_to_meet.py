"""Which job a launch line has other nodes to meet for."""

from __future__ import annotations

import shlex

import pytest

from ddpdoctor.app.job_to_meet import job_to_meet
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Form
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.launch.line import line_of_argv
from ddpdoctor.rules import Rule, load

ELSEWHERE = "192.0.2.7"
"""An address that no machine has."""


RULES = tuple(each for each in load() if "launch" in each.needs)


def _line(line: str) -> tuple[Facts, tuple[Rule, ...]]:
    read = line_of_argv(shlex.split(line), {}, (2, 6), "/job")
    return Facts(schema=SCHEMA, collected_at="", hostname="", launch=Launch(lines=(read,))), RULES


@pytest.mark.parametrize(
    ("line", "form"),
    [
        (f"torchrun --master-addr={ELSEWHERE} --master-port=29500 train.py", Form.STATIC),
        (f"torchrun --node-rank=1 --master-addr={ELSEWHERE} --master-port=29500 train.py", Form.STATIC),
        (f"torchrun --rdzv-backend=c10d --rdzv-endpoint={ELSEWHERE}:29400 train.py", Form.C10D),
        (f"accelerate launch --main_process_ip {ELSEWHERE} --main_process_port 29500 train.py", Form.STATIC),
    ],
)
def test_one_node_whose_master_is_another_machine_meets_it(line: str, form: str) -> None:
    job = job_to_meet(_line(line), {})
    assert job is not None
    assert (job.form, job.nnodes, job.master_addr) == (form, 1, ELSEWHERE)


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc-per-node=2 train.py",
        "torchrun --standalone train.py",
        "torchrun --master-addr=127.0.0.1 --master-port=29500 train.py",
        "torchrun --master-addr=localhost --master-port=29500 train.py",
        "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 train.py",
        "accelerate launch --num_processes 2 train.py",
    ],
)
def test_one_node_that_is_its_own_master_meets_nobody(line: str) -> None:
    assert job_to_meet(_line(line), {}) is None


@pytest.mark.parametrize(
    ("line", "form"),
    [
        (f"torchrun train.py --nnodes=2 --node-rank=1 --master-addr={ELSEWHERE} --master-port=29500", Form.STATIC),
        (f"torchrun --nnodes=2 --rdzv-backend=c10b --rdzv-endpoint={ELSEWHERE}:29400 train.py", Form.C10D),
        (f"torchrun --nnodes=2 --rdzv-backend=nccl --rdzv-endpoint={ELSEWHERE}:29400 train.py", Form.C10D),
    ],
)
def test_a_line_that_would_keep_its_node_away_counts_as_what_it_should_be(line: str, form: str) -> None:
    job = job_to_meet(_line(line), {})
    assert job is not None
    assert (job.form, job.nnodes, job.master_addr) == (form, 2, ELSEWHERE)


def test_a_backend_that_a_plug_in_may_have_is_no_slip() -> None:
    assert (
        job_to_meet(_line(f"torchrun --nnodes=2 --rdzv-backend=mlx --rdzv-endpoint={ELSEWHERE}:1 train.py"), {}) is None
    )


ENVIRON = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": ELSEWHERE, "MASTER_PORT": "29500"}


@pytest.mark.parametrize("wrong", [{"RANK": "-1"}, {"RANK": "1.0"}, {"WORLD_SIZE": "three"}, {"WORLD_SIZE": "0"}])
def test_a_rank_that_was_told_no_number_still_has_others_to_tell(wrong: dict[str, str]) -> None:
    job = job_to_meet(_line("python train.py"), ENVIRON | wrong)
    assert job is not None
    assert (job.form, job.master_addr, job.master_port) == (Form.ENV, ELSEWHERE, 29500)


@pytest.mark.parametrize(
    "more",
    [
        {"RANK": "-1", "WORLD_SIZE": "1"},
        {"RANK": ""},
        {"RANK": "x", "MASTER_ADDR": ""},
        {"RANK": "x", "MASTER_PORT": "70000"},
        {"RANK": "x", "WORLD_SIZE": ""},
    ],
)
def test_who_is_alone_or_does_not_know_the_master_tells_nobody(more: dict[str, str]) -> None:
    assert job_to_meet(_line("python train.py"), ENVIRON | more) is None
