"""Where the ranks of a simulation diverge, and where the finding points."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.scripts.simulation.divergence import DivergenceKind, divergences
from ddpdoctor.scripts.syntax.module import Module, modules

HEAD = "import torch.distributed as dist\n"


def _module(text: str) -> Module:
    (module,) = modules(Script(files=(SourceFile("train.py", HEAD + text),)))
    return module


def _found(body: str) -> list[tuple[str, int]]:
    text = "def f(x, rank, flag):\n" + "\n".join(f"    {row}" for row in body.splitlines())
    return [(d.kind, d.at.lineno - 2) for d in divergences(_module(text))]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if rank == 0:\n    dist.barrier()", [(DivergenceKind.BRANCH, 2)]),
        ("if rank:\n    dist.barrier()", [(DivergenceKind.BRANCH, 2)]),
        ("if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()", []),
        ("if rank == 0:\n    dist.barrier()\nx()\nif rank != 0:\n    dist.barrier()", []),
        ("if flag:\n    dist.barrier()", []),
        ("if flag and rank == 0:\n    dist.barrier()", [(DivergenceKind.BRANCH, 2)]),
        ("if rank == 0 and not flag:\n    return\nif not flag:\n    dist.barrier()", [(DivergenceKind.EXIT, 2)]),
        ("if rank > 0:\n    return\ndist.barrier()", [(DivergenceKind.EXIT, 2)]),
        ("if rank > 0:\n    raise ValueError\ndist.barrier()", []),
        ("for i in x:\n    if rank == 0:\n        continue\n    dist.all_reduce(i)", [(DivergenceKind.EXIT, 3)]),
        ("for i in x:\n    dist.all_reduce(i)\n    if rank == 0:\n        continue", []),
        ("try:\n    if rank == 0:\n        x()\nfinally:\n    dist.barrier()", []),
        ("if rank == 0:\n    try:\n        x()\n    finally:\n        dist.barrier()", [(DivergenceKind.BRANCH, 5)]),
        ("if rank == 0:\n    dist.new_group([0])", [(DivergenceKind.GROUP, 2)]),
        ("if rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.broadcast(x, 0)", [(DivergenceKind.ORDER, 2)]),
        ("if rank in flag:\n    dist.barrier()", []),
        ("if rank == 0:\n    dist.all_reduce(x, group=flag)", []),
        ("if rank == 0:\n    dist.all_reduce(x, group=None)", [(DivergenceKind.BRANCH, 2)]),
        ("if rank % 2 == 0:\n    dist.barrier()", [(DivergenceKind.BRANCH, 2)]),
        ("with x:\n    if rank == dist.get_world_size() - 1:\n        dist.barrier()", [(DivergenceKind.BRANCH, 3)]),
    ],
)
def test_where_ranks_part(body: str, expected: list[tuple[str, int]]) -> None:
    assert _found(body) == expected


def test_a_call_of_a_helper_is_blamed_where_the_ranks_part() -> None:
    text = "def deep():\n    dist.barrier()\ndef helper():\n    deep()\ndef f(rank):\n    if rank == 0:\n        helper()\n"
    (found,) = divergences(_module(text))
    assert (found.at.lineno, found.event.call.lineno) == (8, 3)  # type: ignore[attr-defined]


def test_a_function_that_others_call_is_judged_with_its_callers() -> None:
    text = "def enter(rank):\n    if rank != 0:\n        dist.barrier()\n"
    text += "def leave(rank):\n    if rank == 0:\n        dist.barrier()\n"
    assert not divergences(_module(text + "def f(rank):\n    enter(rank)\n    leave(rank)\n"))
    assert divergences(_module(text + "def f(rank):\n    enter(rank)\n"))
