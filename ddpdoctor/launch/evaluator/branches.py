"""Branches and loops of a simulated shell. A branch on something unknown is taken both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.execution_budget import MOST_ROUNDS
from ddpdoctor.launch.evaluator.expansion import UnsetParameter
from ddpdoctor.launch.evaluator.patterns import pattern
from ddpdoctor.launch.evaluator.shell_process import Flow, ShellProcess
from ddpdoctor.launch.evaluator.values import Value, text_value
from ddpdoctor.launch.evaluator.variables import ShellVariable

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Branches"]


class Branches(ShellProcess):
    """The statements that choose what is executed, and how often."""

    def if_(self, node: Node) -> None:
        """`if`, with its `elif` and `else` branches."""
        self._branches(_branches_of(node))

    def _branches(self, branches: Sequence[tuple[list[Node] | None, list[Node]]]) -> None:
        if not branches:
            self.status = 0
            return
        condition, body = branches[0]
        if condition is None:
            self.block(body)
            return
        self._condition(condition)
        if self.is_ended:
            return
        if self.status is None:
            self.either(lambda shell: shell.block(body), lambda shell: shell._branches(branches[1:]))
        elif self.status == 0:
            self.block(body)
        else:
            self._branches(branches[1:])

    def _condition(self, nodes: Sequence[Node]) -> None:
        before, self.in_condition = self.in_condition, True
        self.block(nodes)
        self.in_condition = before

    def while_(self, node: Node) -> None:
        """`while` and `until`."""
        body = node.child_by_field_name("body")
        conditions = [c for c in node.children if c.is_named and c != body and c.type != "comment"]
        is_until = node.children[0].type == "until"
        for _ in range(MOST_ROUNDS):
            self._condition(conditions)
            if self.is_ended or body is None:
                return
            if self.status is None:
                self._maybe(body)
                return
            if (self.status == 0) == is_until:
                self.status = 0
                return
            if self._round(body):
                return
        self.budget.leave_out(self.origin_of(node), f"a loop of more than {MOST_ROUNDS} rounds")
        if body is not None:
            self._maybe(body)

    def _round(self, body: Node) -> bool:
        """One repetition; whether the loop ends."""
        try:
            self.execute(body)
        except Flow as flow:
            if flow.kind not in ("break", "continue"):
                raise
            if flow.levels > 1:
                raise Flow(flow.kind, flow.levels - 1) from None
            self.status = 0
            return flow.kind == "break"
        return self.is_ended

    def _maybe(self, body: Node) -> None:
        """A loop that runs any number of times: once or not at all, and what it sets is unknown afterwards."""
        before = dict(self.variables.named)

        def once(shell: Branches) -> None:
            try:
                shell._round(body)
            except Flow as flow:
                if flow.kind in ("return", "exit"):
                    raise

        self.either(once, lambda shell: None)
        for name, variable in list(self.variables.named.items()):
            if before.get(name) != variable:
                self.variables.forget(name)

    def for_(self, node: Node) -> None:
        """`for NAME in words`."""
        name_node = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if name_node is None or body is None:
            return
        name = self.text_of(name_node)
        words = node.children_by_field_name("value")
        has_in = any(child.type == "in" for child in node.children)
        values = [v for word in words for v in self.expander().fields(self.text_of(word), self.start_of(word))]
        if not has_in:
            values = list(self.positional)
        self.status = 0
        for value in values[:MOST_ROUNDS]:
            self.variables.assign(name, value)
            if not value.is_known and value.text == UNKNOWN:
                self._maybe(body)
                self.variables.assign(name, value)
                continue
            if self._round(body):
                return
        if len(values) > MOST_ROUNDS:
            self.budget.leave_out(self.origin_of(node), f"a loop of more than {MOST_ROUNDS} rounds")

    def c_style_for(self, node: Node) -> None:
        """`for ((i = 0; i < n; i++))`."""
        start, end = self.source.offsets.of(node)
        body = node.child_by_field_name("body")
        header = re.match(r"for\s*\(\((.*?)\)\)", self.source.text[start:end], re.DOTALL)
        if body is None or header is None:
            return
        parts = [*header[1].split(";"), "", "", ""][:3]
        self.expander().number(parts[0])
        for _ in range(MOST_ROUNDS):
            condition = self.expander().number(parts[1]) if parts[1].strip() else Value("1")
            if not condition.is_known:
                self._maybe(body)
                return
            if condition.text == "0":
                self.status = 0
                return
            if self._round(body):
                return
            self.expander().number(parts[2])
        self.budget.leave_out(self.origin_of(node), f"a loop of more than {MOST_ROUNDS} rounds")

    def case_(self, node: Node) -> None:
        value_node = node.child_by_field_name("value")
        if value_node is None:
            return
        value = self.expander().single(self.text_of(value_node), self.start_of(value_node))
        items = [child for child in node.named_children if child.type == "case_item"]
        self._cases(value, items)

    def _cases(self, value: Value, items: Sequence[Node]) -> None:
        self.status = 0
        for at, item in enumerate(items):
            shapes = item.children_by_field_name("value")
            body = [c for c in item.children if c not in shapes and c.type not in ("|", ")", "(", ";;", ";&", ";;&")]
            answers = [self._matches(value, shape) for shape in shapes]
            if True in answers:
                self.block(body)
                return
            if None in answers:
                rest = items[at + 1 :]
                self._either_case(value, body, rest)
                return

    def _either_case(self, value: Value, body: Sequence[Node], rest: Sequence[Node]) -> None:
        self.either(lambda shell: shell.block(body), lambda shell: shell._cases(value, rest))

    def _matches(self, value: Value, shape: Node) -> bool | None:
        wanted = self.expander().pattern(self.text_of(shape), self.start_of(shape))
        if wanted.text.strip("*") == "" and wanted.text:
            return True
        if not (value.is_known and wanted.is_known) or {"random", "time"} & value.varies:
            return None
        return pattern(wanted.text).fullmatch(value.text) is not None

    def either(self, first: Callable[[Branches], None], second: Callable[[Branches], None]) -> None:
        """Take both ways; afterwards only what both agree on is known."""
        ways = []
        for way in (first, second):
            shell = self.child()
            shell.depth = self.depth
            shell.is_certain = False
            shell.output = list(self.output)
            shell.locals = self.locals
            flow = None
            try:
                way(shell)
            except Flow as ended:
                flow = ended
                shell.is_ended = shell.is_ended or ended.kind in ("exit", "return")
            except UnsetParameter:
                shell.is_ended = True
            ways.append((shell, flow))
        self._merge(ways)

    def _merge(self, ways: Sequence[tuple[Branches, Flow | None]]) -> None:
        for shell, _ in ways:
            self.started += shell.started
        if any(shell.awaited for shell, _ in ways):
            self.awaited = len(self.started)
        living = [shell for shell, _ in ways if not shell.is_ended]
        if not living:
            self.is_ended = all(flow is None or flow.kind == "exit" for _, flow in ways)
            flow = next((flow for _, flow in ways if flow is not None), None)
            if flow is not None and not self.is_ended:
                raise flow
            return
        self._take(living[0])
        for other in living[1:]:
            self._join(other)

    def _take(self, other: Branches) -> None:
        self.variables, self.folder, self.status = other.variables, other.folder, other.status
        self.options, self.functions, self.positional = other.options, other.functions, other.positional
        self.doubted = other.doubted
        self.output[:] = other.output

    def _join(self, other: Branches) -> None:
        names = {*self.variables.named, *other.variables.named}
        for name in names:
            mine, theirs = self.variables.named.get(name), other.variables.named.get(name)
            if mine != theirs:
                both = [v.first for v in (mine, theirs) if v is not None]
                is_exported = any(v.is_exported for v in (mine, theirs) if v is not None)
                self.variables.named[name] = _unknown_of(both, is_exported=is_exported)
        self.folder = self.folder if self.folder == other.folder else None
        self.status = self.status if self.status == other.status else None
        self.options &= other.options
        self.doubted |= other.doubted
        if [v.text for v in self.output] != [v.text for v in other.output]:
            self.output[:] = [text_value(UNKNOWN, *self.output, *other.output)]


def _branches_of(node: Node) -> list[tuple[list[Node] | None, list[Node]]]:
    """The conditions and bodies of an `if`; the condition of `else` is None."""
    branches: list[tuple[list[Node] | None, list[Node]]] = []
    condition: list[Node] = []
    body: list[Node] = []
    is_body = False
    for child in node.children:
        if child.type == "then":
            is_body = True
        elif child.type in ("elif_clause", "else_clause"):
            branches.append((condition, body))
            if child.type == "elif_clause":
                branches += _branches_of(child)
            else:
                branches.append((None, list(child.children[1:])))
            condition, body = [], []
        elif child.type not in ("if", "elif", "fi"):
            (body if is_body else condition).append(child)
    if not any(child.type in ("elif_clause", "else_clause") for child in node.children):
        branches.append((condition, body))
    return branches


def _unknown_of(values: Sequence[Value], *, is_exported: bool) -> ShellVariable:
    return ShellVariable(text_value(UNKNOWN, *values), is_exported=is_exported)
