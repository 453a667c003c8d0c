"""The arguments of one collective, compared between ranks: shape, dtype, reduce operation, root, and length of a list."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.abstract_values import known
from ddpdoctor.scripts.interpreter.tensors import tensor_of
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["ArgumentKind", "UnlikeArgument", "unlike_arguments"]


class ArgumentKind:
    """Which argument differs."""

    SHAPE = "shape"
    DTYPE = "dtype"
    OPERATION = "op"
    ROOT = "root"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, eq=False)
class UnlikeArgument:
    """One collective whose argument differs: `event` of rank `rank` and `other` of rank `other_rank`, with both values."""

    kind: str
    event: Event
    other: Event
    rank: int
    other_rank: int
    node: ast.expr
    values: tuple[object, object]


_TENSORS = {
    "dist.all_reduce": (0, "tensor"),
    "dist.broadcast": (0, "tensor"),
    "dist.reduce": (0, "tensor"),
    "dist.all_gather": (1, "tensor"),
    "dist.gather": (0, "tensor"),
    "dist.scatter": (0, "tensor"),
    "dist.all_gather_into_tensor": (1, "input_tensor"),
    "dist.reduce_scatter_tensor": (1, "input"),
}
"""The tensor that has the same shape and dtype on all ranks."""
_OPERATIONS = {"dist.all_reduce": (1, "op"), "dist.reduce": (2, "op"), "dist.reduce_scatter_tensor": (2, "op")}
ROOTS = {
    "dist.broadcast": (1, "src"),
    "dist.broadcast_object_list": (1, "src"),
    "dist.reduce": (1, "dst"),
    "dist.gather": (2, "dst"),
    "dist.gather_object": (2, "dst"),
    "dist.scatter": (2, "src"),
    "dist.scatter_object_list": (2, "src"),
}
"""The root of a collective."""
_LISTS = {"dist.broadcast_object_list": (0, "object_list")}


def _shape(event: Event, node: ast.expr) -> object:
    tensor = tensor_of(event.evaluator, node, event.frame)
    return tensor.shape if tensor is not None else None


def _dtype(event: Event, node: ast.expr) -> object:
    tensor = tensor_of(event.evaluator, node, event.frame)
    return tensor.dtype if tensor is not None else None


def _root(event: Event, node: ast.expr) -> object:
    value = event.read(node)
    return value if type(value) is int else None


def _operation(event: Event, node: ast.expr) -> object:
    value = event.read(node)
    return value if isinstance(value, str) else None


def _length(event: Event, node: ast.expr) -> object:
    value = event.read(node)
    return len(value) if known(value) and isinstance(value, list) else None


_KINDS: tuple[tuple[str, dict[str, tuple[int, str]], Callable[[Event, ast.expr], object]], ...] = (
    (ArgumentKind.ROOT, ROOTS, _root),
    (ArgumentKind.OPERATION, _OPERATIONS, _operation),
    (ArgumentKind.SHAPE, _TENSORS, _shape),
    (ArgumentKind.DTYPE, _TENSORS, _dtype),
    (ArgumentKind.LENGTH, _LISTS, _length),
)


@lru_cache(maxsize=64)
def unlike_arguments(module: Module) -> tuple[UnlikeArgument, ...]:
    """The collectives of the program that ranks call with unlike arguments, each once."""
    found: dict[tuple[str, ast.Call], UnlikeArgument] = {}
    for simulation in program_simulations(module):
        sequences = [[e for e in t.events if is_default_group_collective(e)] for t in simulation.traces]
        if len(sequences) < 2 or any(t.raised for t in simulation.traces):
            continue
        for number, others in enumerate(sequences[1:], 1):
            if [e.name for e in others] != [e.name for e in sequences[0]]:
                break
            for first, second in zip(sequences[0], others, strict=True):
                for unlike in _unlike(first, second, number):
                    found.setdefault((unlike.kind, unlike.event.call), unlike)
    return tuple(u for u in found.values() if u.event.frame.module is module)


def _unlike(first: Event, second: Event, rank: int) -> Iterator[UnlikeArgument]:
    for kind, table, read in _KINDS:
        place = table.get(first.name)
        if place is None:
            continue
        nodes = [e.argument(*place) for e in (first, second)]
        if nodes[0] is None or nodes[1] is None:
            continue
        values = read(first, nodes[0]), read(second, nodes[1])
        if values[0] is not None and values[1] is not None and values[0] != values[1]:
            yield UnlikeArgument(kind, first, second, 0, rank, nodes[0], values)
