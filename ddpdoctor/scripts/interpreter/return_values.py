"""What the ways through a function give back."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ddpdoctor.scripts.interpreter.simulated_job import Frame, Unknown

if TYPE_CHECKING:
    from ddpdoctor.scripts.interpreter.values import Reader

__all__ = ["returns"]


def returns(reader: Reader, body: list[ast.stmt], frame: Frame) -> list[tuple[object, bool]]:
    """The values that the ways through a function's body can end with, and whether each is a literal."""
    values: list[tuple[object, bool]] = []
    _collect(reader, body, frame, values)
    return values


def _collect(reader: Reader, body: list[ast.stmt], frame: Frame, values: list[tuple[object, bool]]) -> bool:
    """Collect what `return` gives; True when the body certainly returns."""
    for each in body:
        if isinstance(each, ast.Return):
            value = None if each.value is None else reader.value(each.value, frame)
            values.append((value, each.value is None or isinstance(each.value, ast.Constant)))
            return True
        if isinstance(each, ast.Raise):
            return True
        if isinstance(each, ast.If):
            truth = reader.truth(each.test, frame)
            if isinstance(truth, Unknown):
                ends = [_collect(reader, part, frame, values) for part in (each.body, each.orelse)]
                if all(ends):
                    return True
            elif _collect(reader, each.body if truth else each.orelse, frame, values):
                return True
        elif isinstance(each, (ast.With, ast.AsyncWith, ast.Try)):
            if _collect(reader, each.body, frame, values):
                return True
        elif isinstance(each, (ast.For, ast.While, ast.AsyncFor)):
            _collect(reader, each.body, frame, values)
    return False
