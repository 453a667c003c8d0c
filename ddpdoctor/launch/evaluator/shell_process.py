"""One simulated shell: its state, and how it executes text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.execution_budget import DEEPEST, MOST_OUTPUT, Budget
from ddpdoctor.launch.evaluator.expansion import Expander, UnsetParameter
from ddpdoctor.launch.evaluator.protocols import MachineView
from ddpdoctor.launch.evaluator.shell_commands import InvokedCommand, StartedCommand
from ddpdoctor.launch.evaluator.values import NOT_KNOWN, Origin, Value, joined, text_value
from ddpdoctor.launch.evaluator.variables import ShellVariable, Variables
from ddpdoctor.launch.shell.text import LONG_LINE, Offsets, parse
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Flow", "ShellFunction", "ShellProcess", "Source"]

_ShellT = TypeVar("_ShellT", bound="ShellProcess")

_ARITHMETIC = re.compile(
    r"(\$\(\()((?:[^()'\"`\\\n]|\((?:[^()'\"`\\\n]|\((?:[^()'\"`\\\n]|\([^()'\"`\\\n]*\))*\))*\))+)\)\)"
)
"""An arithmetic expansion without quotes, with parentheses three deep."""


class Flow(Exception):
    """A `break`, `continue`, `return` or `exit` that runs for certain."""

    def __init__(self, kind: str, levels: int = 1, status: int | None = 0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.levels = levels
        self.status = status


@dataclass(slots=True)
class Source:
    """A text that is executed, and where its characters are: in a file, or all in one place of another text."""

    text: str
    offsets: Offsets
    origin: Callable[[int, int], Origin]


@dataclass(slots=True)
class ShellFunction:
    source: Source
    body: Node


class ShellProcess:
    """The variables, folder, input and output of one simulated shell, and the text that it executes."""

    handlers: ClassVar[Mapping[str, Callable[[Any, Node], None]]] = {}
    """What executes each kind of statement, by the grammar's name."""

    def __init__(self, machine: MachineView, budget: Budget, variables: Variables | None = None) -> None:
        self.machine = machine
        self.budget = budget
        self.variables = Variables() if variables is None else variables
        self.positional: list[Value] = []
        self.name = Value("bash")
        self.folder: str | None = None
        self.status: int | None = 0
        self.started: list[StartedCommand] = []
        self.awaited = 0
        """How many of them it has waited for."""
        self.output: list[Value] = []
        self.stdin: Value | None = None
        self.options: set[str] = set()
        self.doubted: set[str] = set()
        self.functions: dict[str, ShellFunction] = {}
        self.is_certain = True
        self.is_background = False
        self.invoked: list[InvokedCommand] | None = None
        """Every command that this shell and its subshells run, in order; None if it is not needed."""
        self.is_ended = False
        """Every way through the script has ended."""
        self.has_started = False
        """The last command was a program that is started: in a list it is taken to succeed."""
        self.in_condition = False
        self.targets: list[tuple[Value, list[Value], bool]] = []
        """The files that the redirections of the current command write."""
        self.depth = 0
        self.locals: list[dict[str, ShellVariable | None]] = []
        """What the local variables of each running function hide."""
        self.source = Source("", Offsets(""), lambda start, end: Origin("", start, end))

    # ---- what the expander asks

    def special(self, name: str) -> Value:
        """`$?`, `$$`, `$!`, `$-`, `$0`."""
        if name == "?":
            return NOT_KNOWN if self.status is None else Value(str(self.status))
        if name == "0":
            return self.name
        return NOT_KNOWN if name in "$!" else Value("hB")

    def drawn(self, name: str) -> Value | None:
        """`$RANDOM`; None for every other name."""
        return self.machine.random() if name in ("RANDOM", "SRANDOM") and name not in self.variables.named else None

    def substitute(self, text: str, origin: Origin) -> Value:
        """What a text prints when another shell runs it."""
        if text.lstrip().startswith("<") and re.fullmatch(r"\s*<\s*\S+\s*", text):
            path = self.expander().single(text.strip().removeprefix("<").strip())
            content = self.machine.read_file(path.text, self.folder) if path.is_known else None
            return text_value(UNKNOWN, path) if content is None else Value(content.rstrip("\n"), (origin,))
        inner = self.child()
        inner.output = []
        status = inner.run(text, lambda start, end: origin)
        self.status = status
        self.started += inner.started
        value = joined(inner.output)
        if len(value.text) > MOST_OUTPUT:
            value = value.without_knowledge()
        return replace(value, text=value.text.rstrip("\n"), origins=value.origins or (origin,))

    def expander(self) -> Expander:
        """The expander of words of the current text."""
        return Expander(self, self.source.origin)

    # ---- running text

    def child(self: _ShellT) -> _ShellT:
        """A subshell: a copy whose changes are lost."""
        other = type(self)(self.machine, self.budget, self.variables.copy())
        other.positional, other.name, other.folder = list(self.positional), self.name, self.folder
        other.options, other.functions = set(self.options), dict(self.functions)
        other.doubted = set(self.doubted)
        other.status, other.is_certain, other.depth = self.status, self.is_certain, self.depth + 1
        other.in_condition, other.is_background = self.in_condition, self.is_background
        other.invoked = self.invoked
        other.stdin = self.stdin
        other.source = self.source
        return other

    def run(self, text: str, origin: Callable[[int, int], Origin]) -> int | None:
        """Execute a text in this shell; its exit status, None where it is unknown."""
        before = self.source
        if self.depth > DEEPEST:
            self.budget.leave_out(origin(0, 0), "nested too deeply")
            return None
        if (long_line := LONG_LINE.search(text)) is not None:
            self.budget.leave_out(origin(*long_line.span()), "a line of more than 10000 characters")
        source = _parsable(text)
        tree = parse(source)
        self.source = Source(text, Offsets(source), origin)
        self.depth += 1
        try:
            self.execute(tree)
        except Flow as flow:
            if flow.kind == "exit":
                self.status = flow.status
                self.is_ended = True
            elif flow.kind == "return":
                self.status = flow.status
        except UnsetParameter:
            self.status = 1
            self.is_ended = True
        finally:
            self.source = before
            self.depth -= 1
        return self.status

    def text_of(self, node: Node) -> str:
        """The text of a node."""
        start, end = self.source.offsets.of(node)
        return self.source.text[start:end]

    def start_of(self, node: Node) -> int:
        """Where a node begins in the current text."""
        return self.source.offsets.of(node)[0]

    def origin_of(self, node: Node) -> Origin:
        """Where a node was written."""
        return self.source.origin(*self.source.offsets.of(node))

    def execute(self, node: Node) -> None:
        """Execute one statement."""
        if self.is_ended or not self.budget.spend(lambda: self.origin_of(node)):
            return
        if self.depth > DEEPEST:
            self.budget.leave_out(self.origin_of(node), "nested too deeply")
            return
        handler = self.handlers.get(node.type)
        if handler is not None:
            self.depth += 1
            try:
                handler(self, node)
            finally:
                self.depth -= 1
        elif node.type == "ERROR":
            self.budget.leave_out(self.origin_of(node), f"not understood: {self.text_of(node)[:40]!r}")
            self.status = None

    def block(self, nodes: Iterable[Node]) -> None:
        """Execute statements one after the other."""
        children = list(nodes)
        for at, child in enumerate(children):
            if not child.is_named or self.is_ended:
                continue
            if at + 1 < len(children) and children[at + 1].type == "&":
                self._in_background(child)
            else:
                self.execute(child)

    def _in_background(self, node: Node) -> None:
        inner = self.child()
        inner.is_background = True
        inner.output = self.output
        inner.guarded(lambda: inner.execute(node))
        self.started += [replace(command, is_background=True) for command in inner.started]
        self.status = 0

    def guarded(self, run: Callable[[], None]) -> None:
        """Run something in a subshell: what leaves it ends it alone."""
        try:
            run()
        except Flow as flow:
            self.status = flow.status
        except UnsetParameter:
            self.status = 1

    def leave(self, kind: str, levels: int = 1, status: int | None = 0) -> NoReturn:
        """`exit`, `return`, `break`, `continue`."""
        raise Flow(kind, levels, status)


def _parsable(text: str) -> str:
    """The text for the grammar, of the same length: it does not accept NUL, and fails on `<<` and `--` in arithmetic."""
    source = text.replace(UNKNOWN, "_")
    return _ARITHMETIC.sub(lambda found: found[1] + "1" * len(found[2]) + "))", source) if "((" in source else source
