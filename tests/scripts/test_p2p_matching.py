"""Sends and receives that have no partner, or wait for each other."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.scripts.simulation.p2p_matching import blocked_calls
from ddpdoctor.scripts.syntax.module import Module, modules

HEAD = "import torch.distributed as dist\n"


def _module(text: str) -> Module:
    (module,) = modules(Script(files=(SourceFile("train.py", HEAD + text),)))
    return module


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        ("dist.send(x, dst=1)", "dist.recv(x, src=0)", []),
        (
            "dist.send(x, dst=1)\n        dist.recv(x, src=1)",
            "dist.send(x, dst=0)\n        dist.recv(x, src=0)",
            ["cycle", "cycle"],
        ),
        ("dist.isend(x, dst=1)\n        dist.recv(x, src=1)", "dist.isend(x, dst=0)\n        dist.recv(x, src=0)", []),
        ("dist.send(x, dst=1)", "pass", ["unmatched"]),
        ("dist.send(x, dst=1, tag=1)", "dist.recv(x, src=0, tag=2)", ["unmatched", "unmatched"]),
        ("dist.send(x, dst=0)", "pass", ["self"]),
        ("dist.send(x, dst=where())", "pass", []),
        ("dist.recv(x)", "dist.send(x, dst=0)", []),
    ],
)
def test_sends_and_receives_are_matched(first: str, second: str, kinds: list[str]) -> None:
    text = f"def f(rank, x):\n    if rank == 0:\n        {first}\n    elif rank == 1:\n        {second}\n"
    assert [s.kind for s in blocked_calls(_module(text))][: len(kinds)] == kinds
