"""Distances between lines stand in one table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddpdoctor.logs import distances
from ddpdoctor.logs.distances import Distance

PACKAGE = Path(distances.__file__).parents[1]
TABLE = PACKAGE / "logs" / "distances.py"
READERS = sorted(
    path
    for folder in ("logs", "collectors/log", "rules", "causality")
    for path in (PACKAGE / folder).rglob("*.py")
    if path != TABLE
)
NAMED_AS_DISTANCE = re.compile(r"(^|_)(LINES|FAR|NEAR|FEW|SOON|ABOVE|BELOW)$")
LIMITS = {"MOST_LINES"}
"""How much is kept or read, whatever stands where."""


def test_each_distance_has_a_unit_and_a_reason() -> None:
    table = {name: value for name, value in vars(distances).items() if isinstance(value, Distance)}
    assert len(table) > 30
    assert sorted(table) == sorted(set(distances.__all__) - {"Distance"})
    for name, value in table.items():
        assert value > 0, name
        assert value.unit, name
        assert len(value.reason.split()) > 3, name


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_has_a_distance_of_its_own(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            assert not {name for name in names - LIMITS if NAMED_AS_DISTANCE.search(name)}, f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_line_numbers_are_compared_with_named_distances(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare):
            continue
        numbers = {
            each.value
            for each in ast.walk(node)
            if isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value > 2
        }
        lines = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)} & {"number", "begin"}
        assert not (numbers and lines), f"{path}:{node.lineno}: {numbers}"
