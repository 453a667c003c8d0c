"""One line each of logs that people posted with their questions: triage names the cause from that line alone."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _field() -> ModuleType:
    spec = importlib.util.spec_from_file_location("field_benchmark", BENCHMARKS / "field.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


field = _field()
CASES = list(field.cases_of(BENCHMARKS / "field_cases.jsonl"))


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=[case[0] for case in CASES])
def test_one_line_names_the_cause(name: str, text: str, expected: dict[str, object]) -> None:
    assert field.judged(name, text, expected, Counter()) == []


def test_the_interval_of_a_rate() -> None:
    assert field.rate(0, 0) == "0/0"
    assert field.rate(5, 10) == "5/10 (50.0 %, 23.7 to 76.3)"
    assert field.rate(32, 32).startswith("32/32 (100.0 %, 89.3 to 100.0")
