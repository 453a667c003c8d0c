"""What the probe says of a rank that it never saw: the nodes met before, and whose it was is known."""

from __future__ import annotations

import pytest

from ddpdoctor.app.multinode_check import with_verdict
from ddpdoctor.app.preflight import preflight
from ddpdoctor.app.preflight_plan import PreflightOptions
from ddpdoctor.app.request import Request
from ddpdoctor.app.verdict_messages import read_verdict, written
from ddpdoctor.engine import Outcome
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.findings import Finding, Report, Severity, Where


@pytest.mark.parametrize(
    ("where", "host"),
    [
        (Where(rank=0), "a"),
        (Where(rank=1), "b"),
        (Where(rank=3), "b"),
        (Where(rank=4), "c"),
        (Where(node_rank=1, rank=2), "b"),
        (Where(rank=9), None),
        (Where(rank=4, host="seen"), "seen"),
        (Where(), None),
    ],
)
def test_a_rank_of_nodes_without_numbers_has_a_host(where: Where, host: str | None) -> None:
    met = Nodes(nodes=tuple(Node(name, Form.C10D, nproc=count) for name, count in (("a", 1), ("b", 3), ("c", 1))))
    verdict = read_verdict(written(Outcome(), met))
    report = Report("check", "a", "", 1.0, (Finding("gone", where=where, code="PROBE001", severity=Severity.ERROR),))
    assert with_verdict(report, verdict, (), None).findings[0].where.host == host


def test_who_had_not_joined_is_told_to_the_other_nodes() -> None:
    met = Nodes(
        nodes=tuple(Node(f"h{number}", Form.STATIC, node_rank=number) for number in range(20)),
        expected=22,
        absent=(20, 21),
        absent_count=2,
    )
    told = read_verdict(written(Outcome(), met)).nodes
    assert told is not None
    assert (told.expected, told.joined_count, told.absent, told.is_complete) == (22, 20, (20, 21), False)
    assert len(told.nodes) < 20


def test_a_node_that_met_nobody_says_that_the_others_are_absent() -> None:
    request = Request(
        launch=(
            "torchrun",
            "--nnodes=3",
            "--node_rank=1",
            "--master_addr=nosuchhost.invalid",
            "--nproc_per_node=1",
            "a.py",
        )
    )
    nodes = preflight(request, PreflightOptions(has_probe=False, join_seconds=2.0)).facts.nodes
    assert nodes is not None
    assert (nodes.expected, nodes.joined_count, nodes.absent_count, nodes.is_complete) == (3, 1, 2, False)


def test_a_cause_that_a_line_shows_is_not_told_again_of_all_nodes() -> None:
    words = "torchrun --nnodes=2 --node_rank=0 --master_addr=127.0.0.1 --nproc_per_node=1 a.py"
    report = preflight(Request(launch=tuple(words.split())), PreflightOptions(has_probe=False, join_seconds=1.0)).report
    (found,) = [each for each in report.findings if each.code == "ENV017"]
    assert found.where.column is not None
    assert "PROBE001" in {each.code for each in report.findings}
