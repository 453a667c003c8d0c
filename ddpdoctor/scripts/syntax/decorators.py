"""Decorators of a project: the wrapper that runs instead of the decorated function, and the parameter that it calls."""

from __future__ import annotations

import ast

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.node_cache import cached_per_node
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["Wrapper", "is_context", "wrapper_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Wrapper:
    """`inner` runs instead of a decorated function; it calls that function by `given`, a parameter of the decorator."""

    module: Module
    inner: Function
    given: ast.arg


@cached_per_node
def wrapper_of(module: Module, function: Function) -> Wrapper | None:
    """What runs instead of a function with one decorator of this project; None for others."""
    if len(function.decorator_list) != 1:
        return None
    decorator = function.decorator_list[0]
    target = module.target_of(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if target is None:
        return None
    for call in (node for node in ast.walk(target.function) if isinstance(node, ast.Call)):
        given = target.module.parameter_called(call)
        inner = target.module.index.function_of(call)
        if given is not None and inner is not None and inner is not target.function:
            return Wrapper(target.module, inner, given)
    return None


def is_context(function: Function) -> bool:
    """Whether a function is a context manager whose `yield` runs the body of the `with`."""
    names = [getattr(d, "attr", getattr(d, "id", "")) for d in function.decorator_list]
    return bool(names) and all(name in ("contextmanager", "asynccontextmanager") for name in names)
