"""What each rank does in its order, and where two ranks part."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from cases import all_cases
from conftest import FULL
from scripts import judged

from ddpdoctor.facts.script import Problem, Script, SourceFile
from ddpdoctor.rules import load
from ddpdoctor.scripts.simulation.divergence import Kind, disagreements
from ddpdoctor.scripts.simulation.p2p_matching import problems
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.parsing import concerns, parse

HEAD = "import torch.distributed as dist\n"


def _module(text: str) -> Module:
    (module,) = modules(Script(files=(SourceFile("train.py", HEAD + text),)))
    return module


def _found(body: str) -> list[tuple[str, int]]:
    text = "def f(x, rank, flag):\n" + "\n".join(f"    {row}" for row in body.splitlines())
    return [(d.kind, d.at.lineno - 2) for d in disagreements(_module(text))]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if rank == 0:\n    dist.barrier()", [(Kind.BRANCH, 2)]),
        ("if rank:\n    dist.barrier()", [(Kind.BRANCH, 2)]),
        ("if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()", []),
        ("if rank == 0:\n    dist.barrier()\nx()\nif rank != 0:\n    dist.barrier()", []),
        ("if flag:\n    dist.barrier()", []),
        ("if flag and rank == 0:\n    dist.barrier()", [(Kind.BRANCH, 2)]),
        ("if rank == 0 and not flag:\n    return\nif not flag:\n    dist.barrier()", [(Kind.EXIT, 2)]),
        ("if rank > 0:\n    return\ndist.barrier()", [(Kind.EXIT, 2)]),
        ("if rank > 0:\n    raise ValueError\ndist.barrier()", []),
        ("for i in x:\n    if rank == 0:\n        continue\n    dist.all_reduce(i)", [(Kind.EXIT, 3)]),
        ("for i in x:\n    dist.all_reduce(i)\n    if rank == 0:\n        continue", []),
        ("try:\n    if rank == 0:\n        x()\nfinally:\n    dist.barrier()", []),
        ("if rank == 0:\n    try:\n        x()\n    finally:\n        dist.barrier()", [(Kind.BRANCH, 5)]),
        ("if rank == 0:\n    dist.new_group([0])", [(Kind.GROUP, 2)]),
        ("if rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.broadcast(x, 0)", [(Kind.ORDER, 2)]),
        ("if rank in flag:\n    dist.barrier()", []),
        ("if rank == 0:\n    dist.all_reduce(x, group=flag)", []),
        ("if rank == 0:\n    dist.all_reduce(x, group=None)", [(Kind.BRANCH, 2)]),
        ("if rank % 2 == 0:\n    dist.barrier()", [(Kind.BRANCH, 2)]),
        ("with x:\n    if rank == dist.get_world_size() - 1:\n        dist.barrier()", [(Kind.BRANCH, 3)]),
    ],
)
def test_where_ranks_part(body: str, expected: list[tuple[str, int]]) -> None:
    assert _found(body) == expected


def test_a_call_of_a_helper_is_blamed_where_the_ranks_part() -> None:
    text = "def deep():\n    dist.barrier()\ndef helper():\n    deep()\ndef f(rank):\n    if rank == 0:\n        helper()\n"
    (found,) = disagreements(_module(text))
    assert (found.at.lineno, found.event.call.lineno) == (8, 3)  # type: ignore[attr-defined]


def test_a_function_that_others_call_is_judged_with_its_callers() -> None:
    text = "def enter(rank):\n    if rank != 0:\n        dist.barrier()\n"
    text += "def leave(rank):\n    if rank == 0:\n        dist.barrier()\n"
    assert not disagreements(_module(text + "def f(rank):\n    enter(rank)\n    leave(rank)\n"))
    assert disagreements(_module(text + "def f(rank):\n    enter(rank)\n"))


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        ("dist.send(x, dst=1)", "dist.recv(x, src=0)", []),
        (
            "dist.send(x, dst=1)\n        dist.recv(x, src=1)",
            "dist.send(x, dst=0)\n        dist.recv(x, src=0)",
            ["ring", "ring"],
        ),
        ("dist.isend(x, dst=1)\n        dist.recv(x, src=1)", "dist.isend(x, dst=0)\n        dist.recv(x, src=0)", []),
        ("dist.send(x, dst=1)", "pass", ["alone"]),
        ("dist.send(x, dst=1, tag=1)", "dist.recv(x, src=0, tag=2)", ["alone", "alone"]),
        ("dist.send(x, dst=0)", "pass", ["self"]),
        ("dist.send(x, dst=where())", "pass", []),
        ("dist.recv(x)", "dist.send(x, dst=0)", []),
    ],
)
def test_messages_meet(first: str, second: str, kinds: list[str]) -> None:
    text = f"def f(rank, x):\n    if rank == 0:\n        {first}\n    elif rank == 1:\n        {second}\n"
    assert [s.kind for s in problems(_module(text))][: len(kinds)] == kinds


def test_what_has_no_tree_says_why() -> None:
    assert isinstance(parse("print 'old'"), Problem)
    assert isinstance(parse("(" * 5000), Problem)
    assert isinstance(parse("x = '\0'"), Problem)
    assert not concerns("import numpy")


def test_deep_nesting_is_left_alone() -> None:
    chain = "x = " + "+".join(["1"] * 3000)
    text = f"import torch.distributed as dist\n{chain}\n"
    assert not list(modules(Script(files=(SourceFile("train.py", text),))))


def test_mutated_scripts_crash_no_rule() -> None:
    rules = [each for each in load(("script",)) if "script" in each.needs]
    dice = random.Random(20261121)
    texts = [case.text for case in all_cases("script")]
    for _ in range(20_000 if FULL else 60):
        rows = dice.choice(texts).splitlines()
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(rows))
            kind = dice.random()
            if kind < 0.3:
                del rows[at : at + dice.randint(1, 2)]
            elif kind < 0.6:
                rows.insert(at, dice.choice(dice.choice(texts).splitlines()))
            elif kind < 0.8:
                rows[at] = rows[at].replace(
                    *dice.choice([("rank", "x"), ("(", "(*"), ("=", "=="), ("dist.", ""), ("if ", "while ")])
                )
            rows = rows or ["import torch.distributed"]
        text = "\n".join(rows)
        outcome = judged(text, rules)
        assert not outcome.crashed, (text, outcome.crashed)
        for one, two in pairwise(sorted((e.line, e.column) for f in outcome.findings for e in f.edits)):
            assert one <= two
