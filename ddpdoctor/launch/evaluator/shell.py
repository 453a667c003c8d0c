"""One simulated shell: executes the statements of a script in order, and notes the commands that it would start.

Everything is bounded: statements, depth, repetitions, characters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.launch.evaluator.branches import Branches
from ddpdoctor.launch.evaluator.conditions import Conditions
from ddpdoctor.launch.evaluator.shell_commands import StartedCommand
from ddpdoctor.launch.evaluator.shell_process import ShellFunction
from ddpdoctor.launch.evaluator.simple_commands import SimpleCommands
from ddpdoctor.launch.evaluator.values import joined

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Shell"]


class Shell(Branches, SimpleCommands):
    """One shell process."""

    def program(self, node: Node) -> None:
        self.block(node.children)

    def compound(self, node: Node) -> None:
        if node.children and node.children[0].type == "((":
            start, end = self.source.offsets.of(node)
            value = self.expander().number(self.source.text[start + 2 : end - 2], start + 2)
            self.status = int(value.text == "0") if value.is_known and value.text else None
            return
        self.block(node.children)

    def subshell(self, node: Node) -> None:
        inner = self.child()
        inner.output = self.output
        inner.guarded(lambda: inner.block(node.children))
        self.started += _left(inner)
        self.status = inner.status

    def negated(self, node: Node) -> None:
        self.block(node.named_children)
        self.status = None if self.status is None else int(self.status == 0)

    def list_(self, node: Node) -> None:
        """`a && b`, `a || b`."""
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        self.execute(left)
        if self.is_ended:
            return
        status = 0 if self.status is None and self.has_started and not self.in_condition else self.status
        if status is None:
            self.either(lambda shell: shell.execute(right), lambda shell: None)
        elif (status == 0) == (operator == "&&"):
            self.execute(right)

    def pipeline(self, node: Node) -> None:
        """`a | b`: each part in a shell of its own, the output of one is the input of the next."""
        parts = [child for child in node.children if child.is_named and child.type != "comment"]
        stdin = self.stdin
        for at, part in enumerate(parts):
            inner = self.child()
            inner.stdin = stdin
            inner.output = []
            inner.guarded(functools.partial(inner.execute, part))
            self.started += _left(inner)
            if at + 1 < len(parts):
                stdin = joined(inner.output)
            else:
                self.output += inner.output
                self.status = inner.status

    def test(self, node: Node) -> None:
        """`[ … ]` and `[[ … ]]`."""
        answer = Conditions(self).of_test(node)
        self.status = None if answer is None else int(not answer)

    def function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.text_of(name)] = ShellFunction(self.source, body)
        self.status = 0


Shell.handlers = {
    "program": Shell.program,
    "do_group": Shell.program,
    "compound_statement": Shell.compound,
    "subshell": Shell.subshell,
    "negated_command": Shell.negated,
    "list": Shell.list_,
    "pipeline": Shell.pipeline,
    "redirected_statement": Shell.redirected,
    "if_statement": Shell.if_,
    "while_statement": Shell.while_,
    "for_statement": Shell.for_,
    "c_style_for_statement": Shell.c_style_for,
    "case_statement": Shell.case_,
    "function_definition": Shell.function,
    "test_command": Shell.test,
    "variable_assignment": Shell.assignment,
    "variable_assignments": Shell.assignments,
    "declaration_command": Shell.declaration,
    "unset_command": Shell.unset,
    "command": Shell.command,
}


def _left(inner: Shell) -> Iterator[StartedCommand]:
    """What a subshell has started, once it has ended: for its background commands no other shell can wait."""
    for at, command in enumerate(inner.started):
        is_left = command.is_background and at >= inner.awaited and not inner.is_background
        yield replace(command, is_left=True) if is_left else command
