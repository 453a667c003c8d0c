"""The processes that a file starts itself: mp.spawn, start_processes and Process."""

from __future__ import annotations

import ast

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.syntax.definitions import target_of
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.project_file import ProjectFile

__all__ = ["Spawn", "spawn_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Spawn:
    """A start of processes: `function` runs in each, with the process's index as first argument when `indexed`.

    `how` is `spawn` or `Process`; `arguments` are those of the call after the index; `count` is nprocs.
    """

    call: ast.Call
    how: str
    function: Function | None
    indexed: bool
    arguments: tuple[ast.expr, ...] = ()
    count: ast.expr | None = None

    def given_for(self, parameter: ast.AST) -> ast.expr | None:
        """The argument for a parameter of the function, None for the index and what cannot be matched."""
        parameters = [*self.function.args.posonlyargs, *self.function.args.args] if self.function is not None else []
        position = next((i for i, p in enumerate(parameters) if p is parameter), -1) - self.indexed
        return self.arguments[position] if 0 <= position < len(self.arguments) else None


def _elements(node: ast.expr | None) -> tuple[ast.expr, ...]:
    return tuple(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else ()


def spawn_of(module: ProjectFile, call: ast.Call) -> Spawn | None:
    """The start of processes, if a call is one; None for other calls."""
    name = module.names.of(call.func)
    given = {k.arg: k.value for k in call.keywords if k.arg}
    if name in ("mp.spawn", "mp.start_processes"):
        function = given.get("fn") or (call.args[0] if call.args else None)
        arguments = given.get("args") or (call.args[1] if len(call.args) > 1 else None)
        count = given.get("nprocs") or (call.args[2] if len(call.args) > 2 else None)
        return Spawn(call, "spawn", _own_function(module, function), True, _elements(arguments), count)
    is_process = name == "mp.Process" or (isinstance(call.func, ast.Attribute) and call.func.attr == "Process")
    if is_process and "target" in given:
        target = _own_function(module, given["target"])
        return Spawn(call, "Process", target, False, _elements(given.get("args")), _loop_count(module, call))
    return None


def _own_function(module: ProjectFile, node: ast.expr | None) -> Function | None:
    target = target_of(module, node) if node is not None else None
    return target.function if target is not None and target.module is module else None


def _loop_count(module: ProjectFile, call: ast.Call) -> ast.expr | None:
    """The number of iterations of the loop over a range that starts the processes."""
    for parent, _ in module.index.enclosing(call):
        loops = [parent] if isinstance(parent, ast.For) else getattr(parent, "generators", [])
        for loop in loops:
            items = loop.iter
            if isinstance(items, ast.Call) and module.names.of(items.func) == "range" and len(items.args) == 1:
                return items.args[0]
    return None
