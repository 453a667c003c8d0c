"""Assignments, declarations and arrays of a simulated shell."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.launch.evaluator.shell_process import ShellProcess
from ddpdoctor.launch.evaluator.values import Value

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Assignments"]


class Assignments(ShellProcess):
    """The statements that set or remove variables."""

    def assignment(self, node: Node) -> None:
        """`NAME=value`."""
        self.status = 0
        self.assign(node)

    def assignments(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assignment(child)

    def assign(self, node: Node, **flags: bool) -> None:
        """Carry out one `variable_assignment`."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return
        adds = any(child.type == "+=" for child in node.children)
        name, index = self.text_of(name_node), None
        if name_node.type == "subscript":
            base, at = name_node.child_by_field_name("name"), name_node.child_by_field_name("index")
            if base is None or at is None:
                return
            name = self.text_of(base)
            index = self.expander()._index(name, self.text_of(at))
        if flags:
            self.variables.mark(name, **flags)
        if value_node is not None and value_node.type == "array":
            self.variables.assign_array(name, self._array(value_node, name), adds=adds)
        else:
            end = self.source.offsets.of(node)[1]
            cut = self.source.text.index("=", self.source.offsets.of(name_node)[1], end) + 1
            value = self.expander().single(self.source.text[cut:end], cut, is_assignment=True)
            if not value.origins:  # of a scheduler's variable, or empty: it is the text that gave it to this one
                value = replace(value, origins=(self.source.origin(cut, end),))
            self.variables.assign(name, value, index=index, adds=adds)
        if flags or "a" in self.options:
            self.variables.mark(name, **(flags or {}), **({"is_exported": True} if "a" in self.options else {}))

    def _array(self, node: Node, name: str) -> dict[str, Value]:
        values: dict[str, Value] = {}
        at = 0
        for child in node.named_children:
            if child.type == "comment":
                continue
            text = self.text_of(child)
            keyed = re.match(r"\[([^\]]+)\]=", text)
            if keyed:
                key = self.expander()._index(name, keyed[1])
                values[key] = self.expander().single(text[keyed.end() :], self.start_of(child) + keyed.end())
                at = int(key) + 1 if key.isdigit() else at
                continue
            for value in self.expander().fields(text, self.start_of(child)):
                values[str(at)] = value
                at += 1
        return values

    def declaration(self, node: Node) -> None:
        """`export`, `declare`, `local`, `readonly`, `typeset`."""
        kind = node.children[0].type
        words = node.named_children
        options = "".join(self.text_of(word)[1:] for word in words if self.text_of(word).startswith("-"))
        off = any(self.text_of(word).startswith("+x") for word in words)
        flags = {
            "is_exported": kind == "export" or "x" in options,
            "is_readonly": kind == "readonly" or "r" in options,
            "is_integer": "i" in options,
            "is_map": "A" in options,
        }
        flags = {flag: True for flag, is_set in flags.items() if is_set}
        if "n" in options and kind == "export":
            flags = {"is_exported": False}
        self.status = 0
        for word in words:
            if word.type == "variable_assignment":
                self._declare_one(word, kind, flags)
            elif not self.text_of(word).startswith(("-", "+")):
                self._declare_word(word, kind, flags, off=off)

    def _declare_one(self, node: Node, kind: str, flags: dict[str, bool]) -> None:
        later = {flag: is_set for flag, is_set in flags.items() if flag == "is_readonly"}
        name_node = node.child_by_field_name("name")
        if kind in ("local", "declare", "typeset") and name_node is not None:
            self._localise(self.text_of(name_node))
        self.assign(node, **{flag: is_set for flag, is_set in flags.items() if flag not in later})
        if later and name_node is not None:
            self.variables.mark(self.text_of(name_node), **later)

    def _declare_word(self, node: Node, kind: str, flags: dict[str, bool], *, off: bool) -> None:
        for value in self.expander().fields(self.text_of(node), self.start_of(node)):
            name, sign, text = value.text.partition("=")
            if kind in ("local", "declare", "typeset"):
                self._localise(name)
            if sign:
                self.variables.assign(name, value.with_text(text))
            elif kind == "local" and name not in self.variables.named:
                self.variables.unset.add(name)
            if off:
                self.variables.mark(name, is_exported=False)
            if flags:
                self._mark_later(name, flags)

    def _mark_later(self, name: str, flags: dict[str, bool]) -> None:
        if name not in self.variables.named and self.variables.is_open(name) and flags.get("is_exported"):
            return  # what another process has set is exported as it is
        self.variables.mark(name, **flags)

    def _localise(self, name: str) -> None:
        """Remember what a local variable hides."""
        if self.locals and name not in self.locals[-1]:
            self.locals[-1][name] = self.variables.named.get(name)
            variable = self.variables.named.get(name)
            if variable is not None and not variable.is_exported:
                self.variables.named.pop(name)
                self.variables.unset.add(name)

    def unset(self, node: Node) -> None:
        for word in node.named_children:
            for value in self.expander().fields(self.text_of(word), self.start_of(word)):
                if not value.text.startswith("-"):
                    self.variables.remove(value.text)
        self.status = 0
