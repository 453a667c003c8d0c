"""The arithmetic of bash: `$(( ))`, `$[ ]`, `(( ))`, `let`, subscripts. 64-bit integers that wrap around."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["ArithmeticFailed", "Numbers", "evaluate"]

LONGEST = 2_000
"""Characters of one expression."""
DEEPEST = 40
"""Nested parentheses and variables that hold expressions."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+#[0-9a-zA-Z@_]+|\d+)|(?P<name>[A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(?P<operator>\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))",
    re.ASCII,
)
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_BINARY = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""From the weakest to the strongest; `**` and signs bind stronger than all of them."""


class ArithmeticFailed(ValueError):
    """The expression is not one that bash evaluates, or something in it is unknown."""


class Numbers(Protocol):
    """The variables of a shell, as arithmetic sees them."""

    def read_number(self, name: str) -> str:
        """The text of a variable (`NAME` or `NAME[INDEX]`); "" where it is not set.

        Raises:
            ArithmeticFailed: it is unknown.
        """

    def write_number(self, name: str, number: int) -> None:
        """Set a variable."""


def evaluate(text: str, numbers: Numbers, depth: int = 0) -> int:
    """The value of an expression, as bash computes it.

    Raises:
        ArithmeticFailed: bash would refuse it, or a variable is unknown.
    """
    if len(text) > LONGEST or depth > DEEPEST:
        raise ArithmeticFailed("too long")
    return _Expression(text, numbers, depth).whole()


class _Expression:
    """A parser that evaluates while it reads; what is skipped (`0 && x`) is read without effect."""

    def __init__(self, text: str, numbers: Numbers, depth: int) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._numbers = numbers
        self._depth = depth
        self._is_idle = 0
        self._nested = 0

    def whole(self) -> int:
        if not self._tokens:
            return 0
        value = self._comma()
        if self._at != len(self._tokens):
            raise ArithmeticFailed("unexpected " + self._tokens[self._at][1])
        return value

    def _peek(self) -> str:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return text if kind == "operator" else ""

    def _take(self, *operators: str) -> str:
        found = self._peek()
        if found and found in operators:
            self._at += 1
            return found
        return ""

    def _need(self, operator: str) -> None:
        if not self._take(operator):
            raise ArithmeticFailed(f"{operator} is missing")

    def _comma(self) -> int:
        value = self._assignment()
        while self._take(","):
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        following = self._tokens[self._at + 1][1] if self._at + 1 < len(self._tokens) else ""
        if kind != "name" or following not in _ASSIGNING or self._tokens[self._at + 1][0] != "operator":
            return self._ternary()
        self._at += 2
        value = self._assignment()
        if following != "=":
            value = _computed(following[:-1], self._value_of(name), value, is_idle=bool(self._is_idle))
        self._write(name, value)
        return value

    def _ternary(self) -> int:
        condition = self._level(0)
        if not self._take("?"):
            return condition
        first = self._skipped(self._assignment, is_skipped=not condition)
        self._need(":")
        second = self._skipped(self._ternary, is_skipped=bool(condition))
        return first if condition else second

    def _skipped(self, read: Callable[[], int], *, is_skipped: bool) -> int:
        self._is_idle += is_skipped
        value = read()
        self._is_idle -= is_skipped
        return value

    def _level(self, level: int) -> int:
        if level == len(_BINARY):
            return self._power()
        value = self._level(level + 1)
        while operator := self._take(*_BINARY[level]):
            if operator in ("&&", "||"):
                is_decided = bool(value) == (operator == "||")
                right = self._skipped(lambda: self._level(level + 1), is_skipped=is_decided)
                value = int(bool(value)) if is_decided else int(bool(right))
            else:
                value = _computed(operator, value, self._level(level + 1), is_idle=bool(self._is_idle))
        return value

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        return _computed("**", base, self._power(), is_idle=bool(self._is_idle))

    def _unary(self) -> int:
        if step := self._take("++", "--"):
            kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            if kind != "name":
                return self._unary()  # two signs, which leave the number as it is
            self._at += 1
            return self._step(name, 1 if step == "++" else -1)
        sign = self._take("-", "+", "!", "~")
        if not sign:
            return self._primary()
        self._nested += 1
        if self._nested + self._depth > DEEPEST:
            raise ArithmeticFailed("nested too deeply")
        value = self._unary()
        self._nested -= 1
        return _wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[sign])

    def _primary(self) -> int:
        if self._take("("):
            self._nested += 1
            if self._nested + self._depth > DEEPEST:
                raise ArithmeticFailed("nested too deeply")
            value = self._comma()
            self._need(")")
            self._nested -= 1
            return value
        if self._at >= len(self._tokens):
            raise ArithmeticFailed("an operand is missing")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _number(text)
        if kind != "name":
            raise ArithmeticFailed(f"unexpected {text}")
        if step := self._take("++", "--"):
            value = self._value_of(text)
            self._write(text, value + (1 if step == "++" else -1))
            return value
        return self._value_of(text)

    def _step(self, name: str, by: int) -> int:
        value = _wrapped(self._value_of(name) + by)
        self._write(name, value)
        return value

    def _value_of(self, name: str) -> int:
        text = "0" if self._is_idle else self._numbers.read_number(name).strip()
        if re.fullmatch(r"-?[1-9]\d{0,17}|0", text):
            return int(text)
        return evaluate(text, self._numbers, self._depth + 1)

    def _write(self, name: str, value: int) -> None:
        if not self._is_idle:
            self._numbers.write_number(name, _wrapped(value))


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            raise ArithmeticFailed(f"unexpected {text[at : at + 10]}")
        kind, token = match.lastgroup or "", match[match.lastgroup or 0]
        at = match.end()
        if token in ("++", "--") and not _is_step(found, text, at):
            found += [(kind, token[0]), (kind, token[0])]  # two signs: `7--3`
        else:
            found.append((kind, token))
    return found


def _is_step(before: Sequence[tuple[str, str]], text: str, at: int) -> bool:
    """Whether `++` or `--` belongs to the variable before or after it."""
    if before and before[-1][0] == "name":
        return True
    is_operand = bool(before) and (before[-1][0] == "number" or before[-1][1] == ")")
    return not is_operand and re.match(r"\s*[A-Za-z_]", text[at:]) is not None


def _number(text: str) -> int:
    base, mark, digits = text.partition("#")
    try:
        if mark:
            return _wrapped(_in_base(digits, int(base)))
        if text[:2].lower() == "0x":
            return _wrapped(int(text, 16))
        return _wrapped(int(text, 8) if text[0] == "0" and len(text) > 1 else int(text))
    except ValueError:
        raise ArithmeticFailed(f"not a number: {text}") from None


def _in_base(digits: str, base: int) -> int:
    if not 2 <= base <= 64:
        raise ArithmeticFailed(f"no such base: {base}")
    order = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
    value = 0
    for digit in digits.lower() if base <= 36 else digits:
        at = order.index(digit)
        if at >= base:
            raise ArithmeticFailed(f"not a digit of base {base}: {digit}")
        value = value * base + at
    return value


def _computed(operator: str, left: int, right: int, *, is_idle: bool) -> int:
    if operator in ("/", "%"):
        return 0 if is_idle else _divided(operator, left, right)
    if operator == "**":
        if right < 0:
            if is_idle:
                return 0
            raise ArithmeticFailed("exponent less than 0")
        return _wrapped(pow(left, right, 1 << 64))
    if operator in ("<<", ">>"):
        right &= 63
    return _wrapped(int(_OPERATIONS[operator](left, right)))


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


def _divided(operator: str, left: int, right: int) -> int:
    """As in C: towards zero, the remainder with the sign of the left side."""
    if right == 0:
        raise ArithmeticFailed("division by 0")
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return _wrapped(quotient if operator == "/" else left - quotient * right)


def _wrapped(value: int) -> int:
    """The value as a signed 64-bit integer."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
