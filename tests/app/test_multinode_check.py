"""What the probe says of a rank that it never saw: the nodes met before, and whose it was is known."""

from __future__ import annotations

import pytest

from ddpdoctor.app.multinode_check import with_verdict
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
