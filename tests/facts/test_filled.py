"""Every field of the facts is filled by some code: a rule that reads a field which nobody fills can never fire."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ddpdoctor"
NOT_FILLERS = {"rules", "render", "cli"}
"""Packages that only read facts."""


def _trees(*, fillers: bool) -> list[ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    kept = [
        p
        for p in paths
        if (p.relative_to(PACKAGE).parts[0] not in NOT_FILLERS if fillers else p.is_relative_to(PACKAGE / "facts"))
    ]
    return [ast.parse(path.read_text()) for path in kept]


@cache
def _fields() -> dict[str, list[str]]:
    """The fields of each dataclass of the facts, in their order."""
    return {
        node.name: [
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
        for tree in _trees(fillers=False)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    }


@cache
def _filled() -> tuple[set[str], list[re.Pattern[str]], dict[str, int]]:
    """Names that are given by keyword or as a text, patterns of composed names, and how many are given by position."""
    names: set[str] = set()
    patterns: set[str] = set()
    positions: dict[str, int] = {}
    for tree in _trees(fillers=True):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg:
                names.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.update((node.value, *node.value.split(".")))  # `gpu.diagnostics` fills diagnostics
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"\w+" for p in node.values]
                if re.fullmatch(r"(\w|\\w\+|\\_)*_(\w|\\w\+|\\_)*", "".join(parts)):
                    patterns.add("".join(parts))
            elif isinstance(node, ast.Call):
                given = 999 if any(isinstance(a, ast.Starred) for a in node.args) else len(node.args)
                name = ast.unparse(node.func).rpartition(".")[2]
                positions[name] = max(positions.get(name, 0), given)
    return names, [re.compile(p) for p in patterns], positions


@pytest.mark.parametrize("name", sorted(_fields()))
def test_every_field_is_filled(name: str) -> None:
    names, patterns, positions = _filled()
    empty = [
        field
        for position, field in enumerate(_fields()[name])
        if field not in names and position >= positions.get(name, 0) and not any(p.fullmatch(field) for p in patterns)
    ]
    assert not empty, f"nobody fills {name}.{empty}: fill it in ddpdoctor/collectors, or remove it"
