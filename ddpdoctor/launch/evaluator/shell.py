"""One imagined shell: executes the statements of a script in order, and notes the commands that it would start.

A branch on something unknown is taken both ways. What differs afterwards is unknown. Everything is bounded: statements, depth,
repetitions, characters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, NoReturn

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.builtins import BUILTINS
from ddpdoctor.launch.evaluator.conditions import Conditions
from ddpdoctor.launch.evaluator.expansion import Expander, UnsetParameter
from ddpdoctor.launch.evaluator.patterns import pattern
from ddpdoctor.launch.evaluator.protocols import MachineView
from ddpdoctor.launch.evaluator.values import EMPTY, NOT_KNOWN, Origin, Value, joined, text_value
from ddpdoctor.launch.evaluator.variables import ShellVariable, Variables
from ddpdoctor.launch.shell.text import LONG_LINE, Offsets, parse
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Budget", "InvokedCommand", "Shell", "StartedCommand", "run_text"]

MOST_STATEMENTS = 20_000
MOST_ROUNDS = 1_100
"""Repetitions of one loop whose condition is known."""
DEEPEST = 48
"""Nested statements, functions and shells."""
MOST_OUTPUT = 1 << 20
"""Characters that one command substitution may give."""
MOST_COMMANDS = 20_000
MOST_LEFT_OUT = 200


_ARITHMETIC = re.compile(
    r"(\$\(\()((?:[^()'\"`\\\n]|\((?:[^()'\"`\\\n]|\((?:[^()'\"`\\\n]|\([^()'\"`\\\n]*\))*\))*\))+)\)\)"
)
"""An arithmetic expansion without quotes, with parentheses three deep."""


@dataclass(slots=True)
class Budget:
    """What one evaluation may still do; shared by all shells of it. `left_out` says where it stopped, and why."""

    statements: int = MOST_STATEMENTS
    left_out: list[tuple[Origin, str]] = field(default_factory=list)

    def spend(self, origin: Callable[[], Origin]) -> bool:
        """Whether one more statement may run."""
        self.statements -= 1
        if self.statements == 0:
            self.leave_out(origin(), f"only the first {MOST_STATEMENTS} statements are executed")
        return self.statements > 0

    def leave_out(self, origin: Origin, reason: str) -> None:
        """Note that what begins there is not executed."""
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out.append((origin, reason))

    def described(self, file: str, text: str) -> list[str]:
        """What was left out of a file, as `FILE:LINE: reason`."""
        return list(
            dict.fromkeys(
                f"{file}:{text.count(chr(10), 0, origin.start) + 1}: {reason}"
                if origin.file == file
                else f"{origin.file or file}: {reason}"
                for origin, reason in self.left_out
            )
        )


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A program that the script starts: its words, its environment, where it is written, and whether that is certain.

    `folder` is its working directory, None where it is unknown. `is_certain` is False in a branch that may not be taken.
    """

    argv: tuple[Value, ...]
    environ: dict[str, Value]
    folder: str | None
    origin: Origin
    is_certain: bool = True
    is_background: bool = False
    stdin: Value | None = None
    private: frozenset[str] = frozenset()
    """Variables that the shell has set and that the program does not get."""
    order: int = 0
    """How many commands the shell had run before."""


@dataclass(frozen=True, slots=True)
class InvokedCommand:
    """A command that a shell runs: a program, a builtin, or a function."""

    words: tuple[Value, ...]
    origin: Origin
    is_certain: bool
    is_background: bool


class _Flow(Exception):
    """A `break`, `continue`, `return` or `exit` that runs for certain."""

    def __init__(self, kind: str, levels: int = 1, status: int | None = 0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.levels = levels
        self.status = status


@dataclass(slots=True)
class _Source:
    """A text that is executed, and where its characters are: in a file, or all in one place of another text."""

    text: str
    offsets: Offsets
    origin: Callable[[int, int], Origin]


@dataclass(slots=True)
class _Function:
    source: _Source
    body: Node


class Shell:
    """One shell process."""

    def __init__(self, machine: MachineView, budget: Budget, variables: Variables | None = None) -> None:
        self.machine = machine
        self.budget = budget
        self.variables = Variables() if variables is None else variables
        self.positional: list[Value] = []
        self.name = Value("bash")
        self.folder: str | None = None
        self.status: int | None = 0
        self.started: list[StartedCommand] = []
        self.output: list[Value] = []
        self.stdin: Value | None = None
        self.options: set[str] = set()
        self.doubted: set[str] = set()
        self.functions: dict[str, _Function] = {}
        self.is_certain = True
        self.is_background = False
        self.invoked: list[InvokedCommand] | None = None
        """Every command that this shell and its subshells run, in order; None if it is not needed."""
        self.is_ended = False
        """Every way through the script has ended."""
        self.has_started = False
        """The last command was a program that is started: in a list it is taken to succeed."""
        self.in_condition = False
        self._targets: list[tuple[Value, list[Value], bool]] = []
        """The files that the redirections of the current command write."""
        self.depth = 0
        self._locals: list[dict[str, ShellVariable | None]] = []
        """What the local variables of each running function hide."""
        self._source = _Source("", Offsets(""), lambda start, end: Origin("", start, end))
        self._conditions = Conditions(self)

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
        return Expander(self, self._source.origin)

    # ---- running text

    def child(self) -> Shell:
        """A subshell: a copy whose changes are lost."""
        other = Shell(self.machine, self.budget, self.variables.copy())
        other.positional, other.name, other.folder = list(self.positional), self.name, self.folder
        other.options, other.functions = set(self.options), dict(self.functions)
        other.doubted = set(self.doubted)
        other.status, other.is_certain, other.depth = self.status, self.is_certain, self.depth + 1
        other.in_condition, other.is_background = self.in_condition, self.is_background
        other.invoked = self.invoked
        other.stdin = self.stdin
        other._source = self._source
        return other

    def run(self, text: str, origin: Callable[[int, int], Origin]) -> int | None:
        """Execute a text in this shell; its exit status, None where it is unknown."""
        before = self._source
        if self.depth > DEEPEST:
            self.budget.leave_out(origin(0, 0), "nested too deeply")
            return None
        if (long_line := LONG_LINE.search(text)) is not None:
            self.budget.leave_out(origin(*long_line.span()), "a line of more than 10000 characters")
        source = _parsable(text)
        tree = parse(source)
        self._source = _Source(text, Offsets(source), origin)
        self.depth += 1
        try:
            self.execute(tree)
        except _Flow as flow:
            if flow.kind == "exit":
                self.status = flow.status
                self.is_ended = True
            elif flow.kind == "return":
                self.status = flow.status
        except UnsetParameter:
            self.status = 1
            self.is_ended = True
        finally:
            self._source = before
            self.depth -= 1
        return self.status

    def text_of(self, node: Node) -> str:
        """The text of a node."""
        start, end = self._source.offsets.of(node)
        return self._source.text[start:end]

    def start_of(self, node: Node) -> int:
        """Where a node begins in the current text."""
        return self._source.offsets.of(node)[0]

    def origin_of(self, node: Node) -> Origin:
        """Where a node was written."""
        return self._source.origin(*self._source.offsets.of(node))

    def execute(self, node: Node) -> None:
        """Execute one statement."""
        if self.is_ended or not self.budget.spend(lambda: self.origin_of(node)):
            return
        if self.depth > DEEPEST:
            self.budget.leave_out(self.origin_of(node), "nested too deeply")
            return
        handler = _HANDLERS.get(node.type)
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
        inner._guarded(lambda: inner.execute(node))
        self.started += [replace(command, is_background=True) for command in inner.started]
        self.status = 0

    def _guarded(self, run: Callable[[], None]) -> None:
        """Run something in a subshell: what leaves it ends it alone."""
        try:
            run()
        except _Flow as flow:
            self.status = flow.status
        except UnsetParameter:
            self.status = 1

    # ---- statements

    def program(self, node: Node) -> None:
        self.block(node.children)

    def compound(self, node: Node) -> None:
        if node.children and node.children[0].type == "((":
            start, end = self._source.offsets.of(node)
            value = self.expander().number(self._source.text[start + 2 : end - 2], start + 2)
            self.status = int(value.text == "0") if value.is_known and value.text else None
            return
        self.block(node.children)

    def subshell(self, node: Node) -> None:
        inner = self.child()
        inner.output = self.output
        inner._guarded(lambda: inner.block(node.children))
        self.started += inner.started
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
            inner._guarded(functools.partial(inner.execute, part))
            self.started += inner.started
            if at + 1 < len(parts):
                stdin = joined(inner.output)
            else:
                self.output += inner.output
                self.status = inner.status

    def redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        before_stdin, before_output = self.stdin, self.output
        sink: list[Value] = []
        targets, self._targets = self._targets, []
        rest: list[Node] = []
        for redirect in node.children:
            self._redirect(redirect, sink)
            if redirect.type == "heredoc_redirect":
                self.stdin = self._heredoc(redirect)
                rest += [c for c in redirect.named_children if c.type in ("pipeline", "command", "list")]
        written, self._targets = self._targets, targets
        try:
            if body is not None and rest and rest[0].type == "pipeline":
                self._piped(body, rest[0])
            elif body is not None:
                self.execute(body)
        finally:
            self._write_files(written)
            self.stdin, self.output = before_stdin, before_output

    def _redirect(self, node: Node, sink: list[Value]) -> None:
        if node.type == "file_redirect":
            self._redirect_file(node, sink)
        elif node.type == "herestring_redirect":
            word = node.named_children[-1]
            value = self.expander().single(self.text_of(word), self.start_of(word))
            self.stdin = value.with_text(value.text + "\n")

    def _piped(self, body: Node, following: Node) -> None:
        """`cat <<EOF | program`: the grammar puts the rest of the pipe into the heredoc."""
        inner = self.child()
        inner.output = []
        inner._guarded(lambda: inner.execute(body))
        self.started += inner.started
        self.stdin = joined(inner.output)
        for part in following.named_children:
            self.execute(part)

    def _redirect_file(self, node: Node, sink: list[Value]) -> None:
        operator = next((child.type for child in node.children if not child.is_named), ">")
        descriptor = next((self.text_of(c) for c in node.children if c.type == "file_descriptor"), "")
        destination = node.child_by_field_name("destination")
        if operator == "<" and destination is not None:
            path = self._path_of(destination)
            content = self.machine.read_file(path.text, self.folder) if path.is_known else None
            self.stdin = NOT_KNOWN if content is None else Value(content)
        elif (operator in (">", ">>", ">|", "&>", "&>>") and descriptor in ("", "1")) or (
            operator == ">&" and descriptor in ("", "1")
        ):
            self.output = sink
            if destination is not None and operator != ">&":
                path = self._path_of(destination)
                self._targets.append((path, sink, operator.endswith(">>")))

    def _path_of(self, destination: Node) -> Value:
        """The file of a redirection. The grammar cuts `$A/x_$B.sh` into two words: adjacent pieces are one."""
        text, end = self.text_of(destination), destination.end_byte
        following = destination.next_sibling
        while following is not None and following.is_named and following.start_byte == end:
            text, end, following = text + self.text_of(following), following.end_byte, following.next_sibling
        return self.expander().single(text, self.start_of(destination))

    def _write_files(self, targets: Sequence[tuple[Value, list[Value], bool]]) -> None:
        """Keep what a command wrote to files: a script that is written with a heredoc may be run later."""
        for path, sink, adds in targets:
            if path.is_known and not path.text.startswith("/dev/"):
                self.machine.write_file(path.text, self.folder, joined(sink), adds=adds)

    def _heredoc(self, node: Node) -> Value:
        start = next((self.text_of(c) for c in node.children if c.type == "heredoc_start"), "")
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        text = "" if body is None else self.text_of(body)
        if any(child.type == "<<-" for child in node.children):
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        if body is None:
            return EMPTY
        if any(sign in start for sign in "'\"\\"):
            return Value(text, (self.origin_of(body),))
        value = self.expander().quoted(text, self.start_of(body))
        return replace(value, origins=(self.origin_of(body), *value.origins))

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
        except _Flow as flow:
            if flow.kind not in ("break", "continue"):
                raise
            if flow.levels > 1:
                raise _Flow(flow.kind, flow.levels - 1) from None
            self.status = 0
            return flow.kind == "break"
        return self.is_ended

    def _maybe(self, body: Node) -> None:
        """A loop that runs any number of times: once or not at all, and what it sets is unknown afterwards."""
        before = dict(self.variables.named)

        def once(shell: Shell) -> None:
            try:
                shell._round(body)
            except _Flow as flow:
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
        start, end = self._source.offsets.of(node)
        body = node.child_by_field_name("body")
        header = re.match(r"for\s*\(\((.*?)\)\)", self._source.text[start:end], re.DOTALL)
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

    def function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.text_of(name)] = _Function(self._source, body)
        self.status = 0

    def test(self, node: Node) -> None:
        """`[ … ]` and `[[ … ]]`."""
        answer = self._conditions.of_test(node)
        self.status = None if answer is None else int(not answer)

    # ---- assignments

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
            end = self._source.offsets.of(node)[1]
            cut = self._source.text.index("=", self._source.offsets.of(name_node)[1], end) + 1
            value = self.expander().single(self._source.text[cut:end], cut, is_assignment=True)
            if not value.origins:  # of a scheduler's variable, or empty: it is the text that gave it to this one
                value = replace(value, origins=(self._source.origin(cut, end),))
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
        if self._locals and name not in self._locals[-1]:
            self._locals[-1][name] = self.variables.named.get(name)
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

    # ---- branches that may be taken or not

    def either(self, first: Callable[[Shell], None], second: Callable[[Shell], None]) -> None:
        """Take both ways; afterwards only what both agree on is known."""
        ways = []
        for way in (first, second):
            shell = self.child()
            shell.depth = self.depth
            shell.is_certain = False
            shell.output = list(self.output)
            shell._locals = self._locals
            flow = None
            try:
                way(shell)
            except _Flow as ended:
                flow = ended
                shell.is_ended = shell.is_ended or ended.kind in ("exit", "return")
            except UnsetParameter:
                shell.is_ended = True
            ways.append((shell, flow))
        self._merge(ways)

    def _merge(self, ways: Sequence[tuple[Shell, _Flow | None]]) -> None:
        for shell, _ in ways:
            self.started += shell.started
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

    def _take(self, other: Shell) -> None:
        self.variables, self.folder, self.status = other.variables, other.folder, other.status
        self.options, self.functions, self.positional = other.options, other.functions, other.positional
        self.doubted = other.doubted
        self.output[:] = other.output

    def _join(self, other: Shell) -> None:
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

    # ---- commands

    def command(self, node: Node) -> None:
        """A simple command."""
        redirects = [child for child in node.children if child.type in ("herestring_redirect", "file_redirect")]
        before_stdin, before_output = self.stdin, self.output
        targets, self._targets = self._targets, []
        for redirect in redirects:
            self._redirect(redirect, [])
        try:
            self._simple(node)
        finally:
            self._write_files(self._targets)
            self._targets = targets
            if redirects:
                self.stdin, self.output = before_stdin, before_output

    def _simple(self, node: Node) -> None:
        before: list[Node] = []
        words: list[Value] = []
        if LONG_LINE.search(self._source.text, *self._source.offsets.of(node)) is not None:
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
                    self._source.origin(start, start + len(text)),
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
        end, start = self._source.offsets.of(before)[1], self.start_of(after)
        return "\n" in self._source.text[end:start].replace("\\\n", "")

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

    def _call(self, function: _Function, arguments: Sequence[Value]) -> None:
        before, source = self.positional, self._source
        if self.depth > DEEPEST:
            self.status = None
            return
        self.positional = list(arguments)
        self._source = function.source
        self._locals = [*self._locals, {}]
        self.depth += 4
        try:
            self.status = 0
            self.execute(function.body)
        except _Flow as flow:
            if flow.kind != "return":
                raise
            self.status = flow.status
        finally:
            self.depth -= 4
            self._restore_locals()
            self.positional, self._source = before, source

    def _restore_locals(self) -> None:
        hidden = self._locals[-1]
        self._locals = self._locals[:-1]
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

    def leave(self, kind: str, levels: int = 1, status: int | None = 0) -> NoReturn:
        """`exit`, `return`, `break`, `continue`."""
        raise _Flow(kind, levels, status)


def _parsable(text: str) -> str:
    """The text for the grammar, of the same length: it does not accept NUL, and fails on `<<` and `--` in arithmetic."""
    source = text.replace(UNKNOWN, "_")
    return _ARITHMETIC.sub(lambda found: found[1] + "1" * len(found[2]) + "))", source) if "((" in source else source


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


_HANDLERS: dict[str, Callable[[Shell, Node], None]] = {
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


def run_text(text: str, shell: Shell, file: str = "") -> int | None:
    """Execute a whole script in a shell; its exit status, None where it is unknown."""
    return shell.run(text, lambda start, end: Origin(file, start, end))


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
