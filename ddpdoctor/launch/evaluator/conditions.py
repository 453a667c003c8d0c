"""`[ … ]`, `[[ … ]]` and `test`: true, false, or None where it cannot be known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpdoctor.launch.evaluator.arithmetic import ArithmeticFailed, evaluate
from ddpdoctor.launch.evaluator.patterns import pattern
from ddpdoctor.launch.evaluator.protocols import RunningShell
from ddpdoctor.launch.evaluator.values import RANDOM, TIME, Value

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Conditions"]

_NUMERIC = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES = ("-e", "-f", "-d", "-s", "-r", "-x", "-w", "-L", "-h", "-a", "-b", "-c", "-p", "-S")


class Conditions:
    """Tests of one shell."""

    def __init__(self, shell: RunningShell) -> None:
        self._shell = shell

    def of_test(self, node: Node) -> bool | None:
        """A `test_command` of the grammar."""
        if node.children[0].type == "[":
            words = [value for child in node.named_children for value in self._words(child)]
            return self.of_words(words)
        inner = node.named_children
        if not inner:
            return False
        return self._double(inner[0])

    def of_words(self, words: Sequence[Value]) -> bool | None:
        """The arguments of `test` or `[`, by their number as POSIX says."""
        parser = _Words(words, self)
        answer = parser.either()
        return answer if parser.is_done else None

    def _words(self, node: Node) -> list[Value]:
        """All words of a single-bracket test: the grammar has made operators of some."""
        if node.type in ("binary_expression", "unary_expression", "parenthesized_expression", "negation_expression"):
            return [value for child in node.children for value in self._words(child)]
        text = self._shell.text_of(node)
        if not node.is_named or node.type == "test_operator":
            return [Value(text)]
        return self._shell.expander().fields(text, self._shell.start_of(node))

    def _double(self, node: Node) -> bool | None:
        """An expression between double brackets."""
        kind = node.type
        if kind == "parenthesized_expression":
            return self._double(node.named_children[0]) if node.named_children else None
        if kind in ("negation_expression", "unary_expression") and node.children[0].type == "!":
            answer = self._double(node.children[-1])
            return None if answer is None else not answer
        if kind == "unary_expression":
            return self.unary(self._shell.text_of(node.children[0]), self._single(node.children[-1]))
        if kind != "binary_expression" or len(node.children) < 3:
            value = self._single(node)
            return None if not value.is_known else value.text != ""
        left, operator, right = node.children[0], self._shell.text_of(node.children[1]), node.children[-1]
        if operator in ("&&", "||"):
            return self._joined(left, operator, right)
        return self._compared(self._single(left), operator, right)

    def _joined(self, left: Node, operator: str, right: Node) -> bool | None:
        first = self._double(left)
        if first is (operator == "||"):
            return first
        second = self._double(right)
        if second is (operator == "||"):
            return second
        return None if first is None or second is None else second

    def _single(self, node: Node) -> Value:
        return self._shell.expander().single(self._shell.text_of(node), self._shell.start_of(node))

    def _compared(self, left: Value, operator: str, right: Node) -> bool | None:
        if operator in ("==", "=", "!=", "=~"):
            text, at = self._shell.text_of(right), self._shell.start_of(right)
            shape = self._shell.expander().pattern(text, at)
            if operator == "=~":
                return self._searched(left, shape)
            if shape.text == "*":
                return operator != "!="
            if not _is_decided(left, shape):
                return None
            return (pattern(shape.text).fullmatch(left.text) is not None) == (operator != "!=")
        return self.binary(left, operator, self._single(right))

    def _searched(self, left: Value, shape: Value) -> bool | None:
        if not _is_decided(left, shape) or len(left.text) > 2_000 or re.search(r"[+*}]\)?[+*{]", shape.text):
            return None
        classes = {"[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9", "[:space:]": r"\s"}
        text = shape.text
        for name, signs in classes.items():
            text = text.replace(name, signs)
        try:
            return re.search(text, left.text) is not None
        except (re.error, RecursionError):
            return None

    def unary(self, operator: str, value: Value) -> bool | None:
        """`-z text`, `-f path`, `-v name`, …"""
        if operator in ("-z", "-n"):
            if not value.is_known:
                return None if value.text.strip("\0") == "" else operator == "-n"
            return (value.text == "") == (operator == "-z")
        if not _is_decided(value):
            return None
        if operator == "-v":
            variables = self._shell.variables
            return None if variables.is_open(value.text) else value.text in variables.named
        if operator in _FILES:
            return self._shell.machine.exists(value.text, self._shell.folder, operator)
        return None

    def binary(self, left: Value, operator: str, right: Value) -> bool | None:
        """`a = b`, `a -lt b`, …"""
        if operator in ("=", "==", "!="):
            if not _is_decided(left, right):
                return None
            return (left.text == right.text) == (operator != "!=")
        if not _is_decided(left, right):
            return None
        if operator in ("<", ">"):
            return left.text < right.text if operator == "<" else left.text > right.text
        if operator in _NUMERIC:
            try:
                numbers = [evaluate(value.text, self._shell.variables) for value in (left, right)]
            except ArithmeticFailed:
                return None
            return bool(_NUMERIC[operator](numbers[0], numbers[1]))
        return None


def _is_decided(*values: Value) -> bool:
    """Whether the values are known, and not by chance what they are."""
    return all(value.is_known and not {RANDOM, TIME} & value.varies for value in values)


class _Words:
    """A parser of the words of `test`."""

    def __init__(self, words: Sequence[Value], conditions: Conditions) -> None:
        self._words = list(words)
        self._at = 0
        self._conditions = conditions

    @property
    def is_done(self) -> bool:
        return self._at == len(self._words)

    def _peek(self, ahead: int = 0) -> str:
        return self._words[self._at + ahead].text if self._at + ahead < len(self._words) else ""

    def either(self) -> bool | None:
        """`a -o b`."""
        answer = self.both()
        while self._peek() == "-o":
            self._at += 1
            other = self.both()
            answer = True if True in (answer, other) else None if None in (answer, other) else False
        return answer

    def both(self) -> bool | None:
        """`a -a b`."""
        answer = self.one()
        while self._peek() == "-a":
            self._at += 1
            other = self.one()
            answer = False if False in (answer, other) else None if None in (answer, other) else True
        return answer

    def one(self) -> bool | None:
        left = len(self._words) - self._at
        if left == 0:
            return False
        is_binary = left >= 3 and self._peek(1) in ("=", "==", "!=", "<", ">", *_NUMERIC)
        if is_binary:
            first, operator, second = self._words[self._at], self._peek(1), self._words[self._at + 2]
            self._at += 3
            return self._conditions.binary(first, operator, second)
        if self._peek() == "!" and left > 1:
            self._at += 1
            answer = self.one()
            return None if answer is None else not answer
        if self._peek() == "(" and left > 2:
            self._at += 1
            answer = self.either()
            self._at += 1
            return answer
        if left >= 2 and re.fullmatch(r"-[a-zA-Z]", self._peek()) and self._peek(1) not in ("-a", "-o"):
            operator, value = self._peek(), self._words[self._at + 1]
            self._at += 2
            return self._conditions.unary(operator, value)
        value = self._words[self._at]
        self._at += 1
        return value.text != "" if value.is_known else None
