"""Texts without a syntax tree, and texts that are nested too deeply."""

from __future__ import annotations

from ddpdoctor.facts.script import Script, SourceFile, SourceProblem
from ddpdoctor.scripts.syntax.module import modules
from ddpdoctor.scripts.syntax.parsing import concerns, parse


def test_what_has_no_tree_says_why() -> None:
    assert isinstance(parse("print 'old'"), SourceProblem)
    assert isinstance(parse("(" * 5000), SourceProblem)
    assert isinstance(parse("x = '\0'"), SourceProblem)
    assert not concerns("import numpy")


def test_deep_nesting_is_left_alone() -> None:
    chain = "x = " + "+".join(["1"] * 3000)
    text = f"import torch.distributed as dist\n{chain}\n"
    assert not list(modules(Script(files=(SourceFile("train.py", text),))))
