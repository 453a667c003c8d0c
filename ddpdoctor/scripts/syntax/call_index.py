"""The calls of a file by the name of the function, and what follows from them: frameworks, wrapped models, options."""

from __future__ import annotations

import ast
from functools import cached_property

from ddpdoctor.scripts.syntax.index import Bound, Index
from ddpdoctor.scripts.syntax.names import Names
from ddpdoctor.scripts.syntax.vocabulary import FRAMEWORKS

__all__ = ["CallIndex"]


class CallIndex:
    """The calls of one file in textual order, by short name, by last name and by method name."""

    def __init__(self, index: Index, names: Names) -> None:
        self._index = index
        self._names = names
        self.by_short_name: dict[str, list[ast.Call]] = {}
        """By the short name of the function, such as `dist.all_reduce`."""
        self.by_method: dict[str, list[ast.Call]] = {}
        """The calls `object.name(…)` by that name."""
        self.by_name: dict[str, list[ast.Call]] = {}
        """The calls `name(…)` by that name."""
        for call in index.calls:
            short = names.of(call.func)
            if short is not None:
                self.by_short_name.setdefault(short, []).append(call)
            if isinstance(call.func, ast.Attribute):
                self.by_method.setdefault(call.func.attr, []).append(call)
            elif isinstance(call.func, ast.Name):
                self.by_name.setdefault(call.func.id, []).append(call)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these short names, in textual order."""
        calls = [call for name in names for call in self.by_short_name.get(name, ())]
        return sorted(calls, key=lambda c: (c.lineno, c.col_offset)) if len(names) > 1 else calls

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that the file imports."""
        roots = {
            binding.target.partition(".")[0]
            for scope in self._index.scopes.values()
            for bindings in scope.names.values()
            for binding in bindings
            if binding.how is Bound.IMPORT
        }
        return frozenset(roots & FRAMEWORKS)

    @cached_property
    def wrapped(self) -> frozenset[str]:
        """The names, such as `model` or `self.model`, that a DDP or FSDP wrapper is assigned to."""
        return self._assigned_from("DDP", "FSDP")

    @cached_property
    def sharded(self) -> frozenset[str]:
        """The names that an FSDP wrapper is assigned to: their state_dict is gathered from all ranks."""
        return self._assigned_from("FSDP")

    def _assigned_from(self, *names: str) -> frozenset[str]:
        """The names that a call of one of these functions is assigned to."""
        assigned = set()
        for call in self.calls(*names):
            parent = self._index.parents.get(call)
            if isinstance(parent, ast.Assign):
                assigned |= {ast.unparse(t) for t in parent.targets if isinstance(t, (ast.Name, ast.Attribute))}
        return frozenset(assigned)

    @cached_property
    def wraps(self) -> bool:
        """Whether the file wraps a model so that its backward pass communicates."""
        return bool(self.calls("DDP", "FSDP", "fully_shard"))

    @cached_property
    def options(self) -> dict[str, ast.Call]:
        """The calls of add_argument, by the attribute that the option becomes."""
        options = {}
        for call in self.by_method.get("add_argument", ()):
            flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            dest = next((k.value for k in call.keywords if k.arg == "dest"), None)
            if isinstance(dest, ast.Constant) and isinstance(dest.value, str):
                options[dest.value] = call
            elif flags:
                long = next((f for f in flags if f.startswith("--")), flags[0])
                options[long.lstrip("-").replace("-", "_")] = call
        return options
