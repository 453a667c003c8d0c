"""Simple commands of a simulated shell: functions, builtins, and programs that are started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.launch.evaluator.assignments import Assignments
from ddpdoctor.launch.evaluator.builtins import BUILTINS
from ddpdoctor.launch.evaluator.execution_budget import DEEPEST, MOST_COMMANDS
from ddpdoctor.launch.evaluator.expansion import UnsetParameter
from ddpdoctor.launch.evaluator.redirections import Redirections
from ddpdoctor.launch.evaluator.shell_commands import InvokedCommand, StartedCommand
from ddpdoctor.launch.evaluator.shell_process import Flow, ShellFunction
from ddpdoctor.launch.evaluator.values import NOT_KNOWN, Origin, Value
from ddpdoctor.launch.shell.text import LONG_LINE

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["SimpleCommands"]


class SimpleCommands(Redirections, Assignments):
    """The statements that run a command."""

    def command(self, node: Node) -> None:
        """A simple command."""
        redirects = [child for child in node.children if child.type in ("herestring_redirect", "file_redirect")]
        before_stdin, before_output = self.stdin, self.output
        targets, self.targets = self.targets, []
        for redirect in redirects:
            self._redirect(redirect, [])
        try:
            self._simple(node)
        finally:
            self._write_files(self.targets)
            self.targets = targets
            if redirects:
                self.stdin, self.output = before_stdin, before_output

    def _simple(self, node: Node) -> None:
        before: list[Node] = []
        words: list[Value] = []
        if LONG_LINE.search(self.source.text, *self.source.offsets.of(node)) is not None:
            self.status = None  # the grammar has not seen it: see `run`
            return
        try:
            for children in _joined_words(node):
                child = children[0]
                if child.type == "variable_assignment" and not words:
                    before.append(child)
                    continue
                if before and not words and self._is_next_line(before[-1], child):
                    for assignment in before:  # the grammar reads `A=1 B=2` and the next line as one command
                        self.assignment(assignment)
                    before = []
                text = "".join(self.text_of(each) for each in children)
                start = self.start_of(child)
                here = (
                    self.source.origin(start, start + len(text)),
                )  # of a value that a scheduler sets, or that is not set
                words += [
                    value if value.origins else replace(value, origins=here)
                    for value in self.expander().fields(text, start)
                ]
        except UnsetParameter:
            self.status = 1
            self.is_ended = True
            return
        if not words:
            for assignment in before:
                self.assignment(assignment)
            return
        if before:
            self._with_assignments(before, words, node)
        else:
            self.invoke(words, self.origin_of(node))

    def _is_next_line(self, before: Node, after: Node) -> bool:
        """Whether a line ends between two nodes of a command."""
        end, start = self.source.offsets.of(before)[1], self.start_of(after)
        return "\n" in self.source.text[end:start].replace("\\\n", "")

    def _with_assignments(self, assignments: Sequence[Node], words: Sequence[Value], node: Node) -> None:
        """`NAME=value command`: the variables are the command's alone."""
        saved = self.variables.copy()
        for assignment in assignments:
            self.assign(assignment, is_exported=True)
        names = [self.text_of(a.child_by_field_name("name") or a) for a in assignments]
        self.invoke(words, self.origin_of(node))
        for name in names:
            if name in saved.named:
                self.variables.named[name] = saved.named[name]
            else:
                self.variables.named.pop(name, None)

    def invoke(self, words: Sequence[Value], origin: Origin) -> None:
        """Run a command by its words: a function, a builtin, a program that is known, or one that is started."""
        name = words[0].text
        self.has_started = False
        if self.invoked is not None and len(self.invoked) < MOST_COMMANDS:
            self.invoked.append(InvokedCommand(tuple(words), origin, self.is_certain, self.is_background))
        if name in self.functions:
            self._call(self.functions[name], words[1:])
        elif name in BUILTINS:
            BUILTINS[name](self, words, origin)
        elif (known := self.machine.output(words, self.stdin, self.folder)) is not None:
            self.output.append(known[0])
            self.status = known[1]
        else:
            self.start(words, origin)

    def _call(self, function: ShellFunction, arguments: Sequence[Value]) -> None:
        before, source = self.positional, self.source
        if self.depth > DEEPEST:
            self.status = None
            return
        self.positional = list(arguments)
        self.source = function.source
        self.locals = [*self.locals, {}]
        self.depth += 4
        try:
            self.status = 0
            self.execute(function.body)
        except Flow as flow:
            if flow.kind != "return":
                raise
            self.status = flow.status
        finally:
            self.depth -= 4
            self._restore_locals()
            self.positional, self.source = before, source

    def _restore_locals(self) -> None:
        hidden = self.locals[-1]
        self.locals = self.locals[:-1]
        for name, variable in hidden.items():
            if variable is not None:
                self.variables.named[name] = variable
            else:
                self.variables.named.pop(name, None)

    def start(self, words: Sequence[Value], origin: Origin) -> None:
        """Note a program that would be started; what it prints and how it ends is unknown."""
        environ = self.variables.exported()
        if len(self.started) < MOST_COMMANDS:
            private = {name for name, each in self.variables.named.items() if not each.is_exported} - self.doubted
            order = len(self.invoked or ())
            self.started.append(
                StartedCommand(
                    tuple(words),
                    environ,
                    self.folder,
                    origin,
                    self.is_certain,
                    stdin=self.stdin,
                    private=frozenset(private),
                    order=order,
                )
            )
        self.output.append(NOT_KNOWN)
        self.status = None
        self.has_started = True


def _joined_words(node: Node) -> Iterator[list[Node]]:
    """The assignments and words of a command. The grammar cuts `$A.$B.$C` into two words: adjacent pieces are one."""
    waiting: list[Node] = []
    for child in node.children:
        is_word = child.is_named and child.type not in _NO_WORDS
        if waiting and not (
            is_word and waiting[-1].end_byte == child.start_byte and child.type != "variable_assignment"
        ):
            yield waiting
            waiting = []
        if is_word:
            waiting.append(child)
    if waiting:
        yield waiting


_NO_WORDS = ("herestring_redirect", "file_redirect", "heredoc_redirect", "comment")
