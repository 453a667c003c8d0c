"""Lines of one file: jobs that share a port or an id, and batch scripts without srun."""

from __future__ import annotations

import pytest

from ddpdoctor.engine import judge
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.line import line_of, line_of_text
from ddpdoctor.launch.shell.words import simple_commands
from ddpdoctor.rules import load

RULES = load(("launch",))


def _codes(*lines: LaunchLine, torch: str = "2.13") -> set[str]:
    outcome = judge(Facts(SCHEMA, "", "", launch=Launch(lines=lines, torch=torch)), RULES)
    assert not outcome.crashed, outcome.crashed
    return {f.code for f in outcome.findings}


def _line(text: str, batch: str | None = None, *, torch: tuple[int, int] = (2, 13)) -> LaunchLine:
    (command, *_) = simple_commands(text)
    options = None if batch is None else parse_layers(simple_commands(f"sbatch {batch} job.sh")[0].words, torch)[0]
    return line_of(
        text,
        command.words,
        {},
        torch,
        None,
        file="job.sh",
        is_background=command.operator == "&",
        batch=options,
    )


def _c10d_node(index: int, nnodes: int) -> Node:
    return Node(f"h{index}", Form.C10D, nnodes=nnodes, master_addr="h0", master_port=29400, rdzv_id="none")


@pytest.mark.parametrize(("nnodes", "came", "code"), [(2, 3, {"LAUNCH040"}), (2, 2, set()), (4, 3, set())])
def test_more_nodes_than_the_job_has_are_those_of_two_jobs(nnodes: int, came: int, code: set[str]) -> None:
    nodes = Nodes(nodes=tuple(_c10d_node(index, nnodes) for index in range(came)), expected=nnodes)
    facts = Facts(SCHEMA, "", "", nodes=nodes)
    assert {f.code for f in judge(facts, [each for each in RULES if "nodes" in each.wants]).findings} == code


C10D = "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=h:29400 --rdzv_id=7 a.py"


@pytest.mark.parametrize(
    ("text", "batch", "codes"),
    [
        (C10D, "--nodes=2 --ntasks-per-node=1", {"LAUNCH061"}),
        (f"srun {C10D}", "--nodes=2 --ntasks-per-node=1", set()),
        (f"srun {C10D}", "--nodes=2 --ntasks-per-node=8", {"LAUNCH058"}),
        ("srun torchrun --nproc_per_node=8 a.py", "--nodes=1 --ntasks=8", {"LAUNCH058"}),
        ("torchrun --nproc_per_node=8 a.py", "--nodes=1 --ntasks=1", set()),
    ],
)
def test_batch_options_count_for_the_lines_in_the_file(text: str, batch: str, codes: set[str]) -> None:
    assert _codes(_line(text, batch)) == codes


def test_a_launch_in_the_background_is_seen() -> None:
    assert line_of_text("torchrun a.py &", {}, (2, 13), "/").is_background


@pytest.mark.parametrize(
    ("python", "stops"),
    [("3.10.13", True), ("3.11.7", True), ("3.12.7", True), ("3.12.8", False), ("3.13.1", False), ("3.13", False)],
)
def test_newer_pythons_leave_the_scripts_options_alone(python: str, stops: bool) -> None:
    launch = Launch(lines=(_line("torchrun a.py --log out"),), torch="2.13", python=python)
    found = judge(Facts(SCHEMA, "", "", launch=launch), RULES).findings
    assert [f.code for f in found] == (["LAUNCH010"] if stops else [])
