"""`ddpdoctor env` as people read it: at every width, for every launcher."""

from __future__ import annotations

import pytest
from machines import machine, machine_names

from ddpdoctor.cli.screens.env import draw
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.record import SCHEMA, Facts


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("name", [n for n in machine_names() if n.startswith("launcher_")])
def test_the_table_fits_the_width(name: str, width: int) -> None:
    assert all(len(line.rstrip()) <= width for line in draw(machine(name), width=width, colour=False).splitlines())


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("torchrun_worker", "Started by torchrun. Rank 1 of 2, local rank 1 of 2, node 0 of 1."),
        ("torchrun_in_slurm", "Started by torchrun inside Slurm (srun). Rank 3 of 4, local rank 1 of 2, node 1 of 2."),
        ("sbatch_body", "No launcher started this process inside a Slurm job."),
        ("pytorchjob_worker", "Started by Kubeflow PyTorchJob inside Kubernetes. Pod 1 of 2."),
        ("kubeflow_trainer_pod", "Started by Kubeflow Trainer inside Kubernetes. Node 1 of 2."),
        ("by_hand_one_node", "RANK and WORLD_SIZE were set by hand: no launcher's variables are set."),
    ],
)
def test_the_first_words_say_who_started_us(name: str, header: str) -> None:
    text = draw(machine(f"launcher_{name}"), width=200, colour=False)
    assert header in " ".join(text.split("\n\n")[0].split())


def test_rows_say_value_setter_and_meaning() -> None:
    rows = draw(machine("launcher_torchrun_in_slurm"), width=200, colour=False).splitlines()
    (row,) = [r for r in rows if r.startswith("SLURM_PROCID")]
    assert row.split(maxsplit=3)[:3] == ["SLURM_PROCID", "1", "Slurm"]
    assert "rank of this task" in row


def test_long_values_are_cut_in_the_middle_and_empty_ones_are_shown() -> None:
    patch = {"environ": {"variables": {"MASTER_ADDR": "a" * 9999 + "z", "NCCL_DEBUG": ""}}}
    text = draw(machine("cpu_vm", patch), width=100, colour=False)
    assert "…" in text
    assert "z" in text
    assert '""' in text
    assert len(text) < 2000


def test_markup_in_a_value_is_shown_as_it_is() -> None:
    text = draw(machine("cpu_vm", {"environ": {"variables": {"NCCL_DEBUG": "[bold]x[/]"}}}), width=100, colour=True)
    assert "[bold]x[/]" in text


def test_an_empty_environment_is_one_sentence() -> None:
    text = draw(machine("cpu_vm"), width=80, colour=False)
    assert text == "No variable of a launcher, torch, NCCL, Gloo, CUDA or OpenMP is set.\n"


def test_facts_without_an_environment_say_why() -> None:
    facts = Facts(SCHEMA, "", "h", gaps=(Gap("environ", "no answer within 2 s"),))
    assert "no answer within 2 s" in draw(facts, width=80, colour=False)
