"""The verdict of several nodes: what is to be typed on which of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.app.verdicts import judge_nodes, merged
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.findings import Finding, NodeCommand, Severity
from ddpdoctor.multinode.members import Member
from ddpdoctor.rules import load


def _member(host: str, node_rank: int, *options: str) -> Member:
    node = Node(host, Form.STATIC, node_rank=node_rank, nproc=1, master_addr="a", master_port=29500)
    argv = ["torchrun", "--nproc_per_node", "1", "--master_addr", "a", "--node_rank", str(node_rank), *options, "t.py"]
    return Member(host + str(node_rank), node, (), {"argv": argv, "environ": {}, "cwd": "/job"})


def _commands(code: str, *members: Member) -> list[tuple[str, str]]:
    nodes = Nodes(nodes=tuple(member.node for member in members), expected=len(members))
    (found,) = [each for each in judge_nodes(load(), nodes, members, "2.13").findings if each.code == code]
    return [(each.on, each.command) for each in found.commands]


def test_a_corrected_line_says_for_which_node_it_is() -> None:
    found = _commands("LAUNCH035", _member("a", 0, "--nnodes", "2"), _member("b", 1, "--nnodes", "3"))
    assert [on for on, _ in found] == ["b"]
    assert "--nnodes 2" in found[0][1]


def test_of_nodes_on_one_host_the_number_says_which() -> None:
    found = _commands("LAUNCH035", _member("a", 0, "--nnodes", "2"), _member("a", 1, "--nnodes", "3"))
    assert [on for on, _ in found] == ["node 1"]


def test_two_nodes_with_one_number_get_a_line_although_theirs_are_alike() -> None:
    found = _commands("LAUNCH036", _member("a", 0, "--nnodes", "2"), _member("b", 0, "--nnodes", "2"))
    assert [on for on, _ in found] == ["b"]
    assert "--node_rank 1" in found[0][1]


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        (("eth0", "eth0"), (("all nodes", "eth0"),)),
        (("eth0", "ens5"), (("a", "eth0"), ("b", "ens5"))),
        (("eth0", "eth0", None), (("a", "eth0"), ("b", "eth0"))),
    ],
)
def test_commands_that_differ_per_node_are_told_per_node(interfaces: Any, expected: Any) -> None:
    own = [
        (
            Node(host, Form.STATIC, node_rank=number),
            Finding("the name is a loopback address", code="NET017", severity=Severity.ERROR, fix_command=interface),
        )
        for number, (host, interface) in enumerate(zip("abc", interfaces, strict=False))
        if interface is not None
    ]
    (found,) = merged(own, len(interfaces))
    assert found.commands == tuple(NodeCommand(*each) for each in expected)


def test_an_endpoint_is_to_be_given_to_all_nodes() -> None:
    two = [Node(host, Form.C10D, nproc=1, master_addr="10.0.0.9", master_port=29400, came="main") for host in "ab"]
    nodes = Nodes(nodes=(replace(two[0], is_at_master=True, owns=False), replace(two[1], owns=False)), expected=2)
    rules = [each for each in load() if each.code == "NET012"]
    (found,) = judge_nodes(rules, nodes, (), "2.13").findings
    assert [(each.on, each.command) for each in found.commands] == [("all nodes", "--rdzv-endpoint=a:29400")]
