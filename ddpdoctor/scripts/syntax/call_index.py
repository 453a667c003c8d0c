"""The calls of a file by the name of what they call, and what they and its imports tell: frameworks, models, options."""

from __future__ import annotations

import ast
from functools import cached_property

from ddpdoctor.scripts.syntax.classes import Classes
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.vocabulary import FRAMEWORKS

__all__ = ["Calls"]


class Calls(Classes):
    """What can be asked about the calls of one file by their names; `Module` adds what they run."""

    @cached_property
    def named_calls(self) -> dict[str, list[ast.Call]]:
        """All calls by the short name of what they call, in textual order."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.index.calls:
            name = self.names.of(call.func)
            if name is not None:
                found.setdefault(name, []).append(call)
        return found

    @cached_property
    def method_calls(self) -> dict[str, list[ast.Call]]:
        """All calls `object.name(…)` by that last name."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.index.calls:
            if isinstance(call.func, ast.Attribute):
                found.setdefault(call.func.attr, []).append(call)
        return found

    @cached_property
    def calls_by_name(self) -> dict[str, list[ast.Call]]:
        """All calls `name(…)` by that name."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.index.calls:
            if isinstance(call.func, ast.Name):
                found.setdefault(call.func.id, []).append(call)
        return found

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these short names, in textual order."""
        found = [call for name in names for call in self.named_calls.get(name, ())]
        return sorted(found, key=lambda c: (c.lineno, c.col_offset)) if len(names) > 1 else found

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that the file imports."""
        roots = {
            binding.target.partition(".")[0]
            for scope in self.index.scopes.values()
            for bindings in scope.names.values()
            for binding in bindings
            if binding.how is Bound.IMPORT
        }
        return frozenset(roots & FRAMEWORKS)

    @cached_property
    def wrapped(self) -> frozenset[str]:
        """The names, such as `model` or `self.model`, that a DDP or FSDP wrapper is assigned to."""
        return self._given("DDP", "FSDP")

    @cached_property
    def sharded(self) -> frozenset[str]:
        """The names that an FSDP wrapper is assigned to: their state_dict is gathered from all ranks."""
        return self._given("FSDP")

    def _given(self, *names: str) -> frozenset[str]:
        found = set()
        for call in self.calls(*names):
            parent = self.index.parents.get(call)
            if isinstance(parent, ast.Assign):
                found |= {ast.unparse(t) for t in parent.targets if isinstance(t, (ast.Name, ast.Attribute))}
        return frozenset(found)

    @cached_property
    def wraps(self) -> bool:
        """Whether the file wraps a model so that its backward pass communicates."""
        return bool(self.calls("DDP", "FSDP", "fully_shard"))

    @cached_property
    def options(self) -> dict[str, ast.Call]:
        """The calls of add_argument, by the attribute that the option becomes."""
        found = {}
        for call in self.method_calls.get("add_argument", ()):
            flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            dest = next((k.value for k in call.keywords if k.arg == "dest"), None)
            if isinstance(dest, ast.Constant) and isinstance(dest.value, str):
                found[dest.value] = call
            elif flags:
                long = next((f for f in flags if f.startswith("--")), flags[0])
                found[long.lstrip("-").replace("-", "_")] = call
        return found
