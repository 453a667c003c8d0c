"""The words of a command as a program gets them: quotes, parameters, command substitution, arithmetic, splitting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Protocol

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.arithmetic import ArithmeticFailed, evaluate
from ddpdoctor.launch.evaluator.patterns import TooManyWords, braces, case_changed, removed, replaced
from ddpdoctor.launch.evaluator.values import EMPTY, NOT_KNOWN, RANDOM, Origin, Value, joined, text_value
from ddpdoctor.launch.evaluator.variables import Variables
from ddpdoctor.launch.evaluator.word_ends import (
    closing_of,
    colon,
    end_of_ansi,
    end_of_backquote,
    end_of_string,
    unquoted_slash,
)
from ddpdoctor.launch.shell.text import end_of_commands
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Expander", "ShellView", "UnsetParameter"]

LONGEST = 1 << 20
"""Characters that one word may become."""
DEEPEST = 60
"""Expansions within expansions."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = "@*#?-$!0123456789"
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*(?:\][^\]}]*)*?)\](?=[^\w]|$))?", re.ASCII
)
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]|:")


class UnsetParameter(Exception):
    """`${NAME:?message}` of a variable that is not set: the shell ends."""


class ShellView(Protocol):
    """What an expander asks of the shell."""

    @property
    def variables(self) -> Variables: ...

    @property
    def positional(self) -> list[Value]: ...

    def special(self, name: str) -> Value:
        """`$?`, `$$`, `$!`, `$-`, `$0`."""

    def drawn(self, name: str) -> Value | None:
        """`$RANDOM` and `$SRANDOM`; None for every other name."""

    def substitute(self, text: str, origin: Origin) -> Value:
        """What `$(text)` prints, without the trailing line ends."""


@dataclass(slots=True)
class _Part:
    """A piece of a word. What is not quoted and came out of an expansion is split."""

    value: Value
    is_quoted: bool
    is_split: bool = False


@dataclass(slots=True)
class _Word:
    """A word while it is made: fields, each of parts. `has_list`: it held "$@", which may give no field at all."""

    fields: list[list[_Part]] = field(default_factory=lambda: [[]])
    has_list: bool = False

    def add(self, value: Value, *, is_quoted: bool, is_split: bool = False) -> None:
        self.fields[-1].append(_Part(value, is_quoted, is_split))

    def add_list(self, values: Iterable[Value], *, is_quoted: bool) -> None:
        self.has_list = True
        for number, value in enumerate(values):
            if number:
                self.fields.append([])
            self.add(value, is_quoted=is_quoted, is_split=not is_quoted)


class Expander:
    """Expands words of one shell. `origin` says where a piece of text was written."""

    def __init__(self, shell: ShellView, origin: Callable[[int, int], Origin]) -> None:
        self._shell = shell
        self._origin = origin
        self._depth = 0

    def fields(self, text: str, at: int = 0) -> list[Value]:
        """The arguments that a word becomes; `at` is where it begins in its source."""
        words = [text]
        if "{" in text and not any(sign in text for sign in ("'", '"', "`", "$(", "$[")):
            try:
                words = braces(text)
            except TooManyWords:
                return [self._literal(UNKNOWN, at, len(text))]
        return [value for word in words for value in self._split(self._read(word, at))]

    def single(self, text: str, at: int = 0, *, is_assignment: bool = False) -> Value:
        """The word as one text, as in an assignment: neither braces nor splitting."""
        word = self._read(text, at, is_assignment=is_assignment)
        separator = (self._ifs() or EMPTY.text)[:1] if word.has_list else ""
        return joined((joined(part.value for part in parts) for parts in word.fields), separator or " ")

    def pattern(self, text: str, at: int = 0) -> Value:
        """The word as a pattern: what is quoted has a backslash before each of its signs."""
        word = self._read(text, at)
        pieces = [
            part.value.with_text(re.sub(r"([\\*?\[\]^!-])", r"\\\1", part.value.text)) if part.is_quoted else part.value
            for parts in word.fields
            for part in parts
        ]
        return joined(pieces)

    def quoted(self, text: str, at: int = 0) -> Value:
        """The text as between double quotes: the body of a heredoc."""
        word = _Word()
        self._double(word, text, at, is_heredoc=True)
        return joined((joined(part.value for part in parts) for parts in word.fields), " ")

    def number(self, text: str, at: int = 0) -> Value:
        """The value of an arithmetic expression."""
        expanded = self._arithmetic_text(text, at)
        sources = [expanded, *self._numbers_in(expanded.text)]
        if not expanded.is_known:
            return text_value(UNKNOWN, *sources)
        try:
            return text_value(str(evaluate(expanded.text, _Drawing(self._shell))), *sources)
        except ArithmeticFailed:
            return text_value(UNKNOWN, *sources)

    def _numbers_in(self, text: str) -> Iterator[Value]:
        """The variables that an expression names: its value differs where theirs do."""
        for name in dict.fromkeys(_NAME.findall(text)):
            value = self._shell.variables.value(name)
            if name == "RANDOM" and self._shell.drawn(name) is not None:
                yield Value("", varies=frozenset((RANDOM,)))
            elif value is not None:
                yield value

    def _arithmetic_text(self, text: str, at: int) -> Value:
        word = _Word()
        self._double(word, text.replace('"', ""), at, is_heredoc=True)
        return joined(part.value for parts in word.fields for part in parts)

    def _literal(self, text: str, at: int, length: int) -> Value:
        return Value(text, (self._origin(at, at + length),))

    def _ifs(self) -> str:
        value = self._shell.variables.value("IFS")
        return " \t\n" if value is None or not value.is_known else value.text

    def _split(self, word: _Word) -> list[Value]:
        """The fields of a word after splitting what came out of expansions."""
        found = []
        ifs = self._ifs()
        for parts in word.fields:
            if not parts and (word.has_list or len(word.fields) == 1):
                continue
            found += _fields(parts, ifs)
        return found

    def _read(self, text: str, base: int, *, is_assignment: bool = False) -> _Word:
        """The parts of a word."""
        word = _Word()
        at = 0
        plain_from = 0
        self._depth += 1
        if self._depth > DEEPEST:
            self._depth -= 1
            word.add(NOT_KNOWN, is_quoted=True)
            return word

        def flush(end: int) -> None:
            if end > plain_from:
                piece = text[plain_from:end]
                word.add(self._literal(piece, base + plain_from, len(piece)), is_quoted=False)

        while at < len(text):
            sign = text[at]
            if sign == "\\":
                flush(at)
                if text[at + 1 : at + 2] != "\n":
                    word.add(self._literal(text[at + 1 : at + 2], base + at, 2), is_quoted=True)
                at += 2
            elif sign == "'":
                flush(at)
                end = text.find("'", at + 1)
                end = len(text) if end < 0 else end
                word.add(self._literal(text[at + 1 : end], base + at, end + 1 - at), is_quoted=True)
                at = end + 1
            elif sign == '"' or text.startswith('$"', at):
                flush(at)
                start = at + (2 if sign == "$" else 1)
                end = end_of_string(text, start)
                if end == start:
                    word.add(self._literal("", base + at, 2), is_quoted=True)
                self._double(word, text[start:end], base + start)
                at = end + 1
            elif text.startswith("$'", at):
                flush(at)
                end = end_of_ansi(text, at + 2)
                word.add(self._literal(_ansi(text[at + 2 : end]), base + at, end + 1 - at), is_quoted=True)
                at = end + 1
            elif sign in "$`" and (end := self._expansion(word, text, at, base, is_quoted=False, before=flush)) > at:
                at = end
            elif sign == "~" and _is_home(text, at, is_assignment=is_assignment):
                flush(at)
                home = self._shell.variables.value("HOME") or NOT_KNOWN
                word.add(home, is_quoted=True)
                at += 1
            else:
                at += 1
                continue
            plain_from = at
        flush(len(text))
        self._depth -= 1
        if sum(len(part.value.text) for parts in word.fields for part in parts) > LONGEST:
            return _Word([[_Part(NOT_KNOWN, True)]])
        return word

    def _double(self, word: _Word, text: str, base: int, *, is_heredoc: bool = False) -> None:
        """The inside of double quotes."""
        escapes = "$`\\\n" if is_heredoc else '$`"\\\n'
        at = plain_from = 0

        def flush(end: int) -> None:
            if end > plain_from:
                piece = text[plain_from:end]
                word.add(self._literal(piece, base + plain_from, len(piece)), is_quoted=True)

        while at < len(text):
            sign = text[at]
            if sign == "\\" and text[at + 1 : at + 2] in tuple(escapes):
                flush(at)
                if text[at + 1] != "\n":
                    word.add(self._literal(text[at + 1], base + at, 2), is_quoted=True)
                at += 2
                plain_from = at
            elif sign in "$`" and (end := self._expansion(word, text, at, base, is_quoted=True, before=flush)) > at:
                at = plain_from = end
            else:
                at += 1
        flush(len(text))

    def _expansion(
        self, word: _Word, text: str, at: int, base: int, *, is_quoted: bool, before: Callable[[int], None]
    ) -> int:
        """Expand what begins at a dollar or a backquote; where it ends, `at` itself where nothing begins there."""
        if text[at] == "`":
            end = end_of_backquote(text, at + 1)
            inner = re.sub(r"\\([\\$`])", r"\1", text[at + 1 : end])
            before(at)
            value = self._shell.substitute(inner, self._origin(base + at, base + end + 1))
            word.add(value, is_quoted=is_quoted, is_split=not is_quoted)
            return end + 1
        opened = next((o for o in ("$((", "$(", "$[", "${") if text.startswith(o, at)), None)
        if opened == "$((" and end_of_commands(text, at) is not None:
            opened = "$("
        if opened is None:
            return self._short(word, text, at, is_quoted=is_quoted, before=before)
        end = closing_of(text, at + len(opened), {"$((": "))", "$(": ")", "$[": "]", "${": "}"}[opened])
        if end < 0:
            if opened != "$((":
                return at
            opened, end = "$(", closing_of(text, at + 2, ")")
            if end < 0:
                return at
        before(at)
        inner, start = text[at + len(opened) : end], base + at + len(opened)
        if opened in ("$((", "$["):
            word.add(self.number(inner, start), is_quoted=is_quoted, is_split=not is_quoted)
            return end + (2 if opened == "$((" else 1)
        if opened == "$(":
            value = self._shell.substitute(inner, self._origin(base + at, base + end + 1))
            word.add(value, is_quoted=is_quoted, is_split=not is_quoted)
        else:
            self._parameter(word, inner, start, is_quoted=is_quoted)
        return end + 1

    def _short(self, word: _Word, text: str, at: int, *, is_quoted: bool, before: Callable[[int], None]) -> int:
        """`$NAME`, `$1`, `$@`."""
        match = _NAME.match(text, at + 1)
        name = match[0] if match else text[at + 1 : at + 2]
        if not name or not (match or name in _SPECIAL):
            return at
        before(at)
        self._add(word, name, None, is_quoted=is_quoted)
        return at + 1 + len(name)

    def _add(self, word: _Word, name: str, index: str | None, *, is_quoted: bool) -> None:
        """Add what a parameter holds."""
        if name in ("@", "*") or index in ("@", "*"):
            values = self._shell.positional if name in ("@", "*") else self._shell.variables.elements(name)
            if not values:
                self._shell.variables.miss(name)
            self._add_values(word, values, is_star="*" in (name, index), is_quoted=is_quoted)
            return
        value = self._value(name, index)
        if value is None:
            self._shell.variables.miss(name)
        word.add(EMPTY if value is None else value, is_quoted=is_quoted, is_split=not is_quoted)

    def _add_values(self, word: _Word, values: list[Value], *, is_star: bool, is_quoted: bool) -> None:
        if is_star and is_quoted:
            word.add(joined(values, self._ifs()[:1]), is_quoted=True)
        else:
            word.add_list(values, is_quoted=is_quoted)

    def _value(self, name: str, index: str | None) -> Value | None:
        """What a parameter holds; None where it is not set."""
        if name.isdigit() and name != "0":
            positional = self._shell.positional
            return positional[int(name) - 1] if int(name) <= len(positional) else self._missing_argument()
        if name in _SPECIAL:
            return Value(str(len(self._shell.positional))) if name == "#" else self._shell.special(name)
        if index is None:
            drawn = self._shell.drawn(name)
            return self._shell.variables.value(name) if drawn is None else drawn
        return self._shell.variables.value(name, self._index(name, index))

    def _missing_argument(self) -> Value | None:
        return None if self._shell.variables.is_closed or self._shell.positional else NOT_KNOWN

    def _index(self, name: str, index: str) -> str:
        variable = self._shell.variables.get(name)
        if variable is not None and variable.is_map:
            return self.single(index).text
        number = self.number(index).text
        if number.startswith("-") and variable is not None and variable.elements:
            return str(max(map(int, variable.elements)) + 1 + int(number))
        return number

    def _parameter(self, word: _Word, inner: str, at: int, *, is_quoted: bool) -> None:
        """`${…}`."""
        if inner.startswith("#") and len(inner) > 1 and (counted := _PARAMETER.fullmatch(inner, 1)):
            word.add(self._length(counted["name"], counted["index"]), is_quoted=is_quoted, is_split=not is_quoted)
            return
        if inner.startswith("!") and len(inner) > 1:
            self._indirect(word, inner[1:], at + 1, is_quoted=is_quoted)
            return
        match = _PARAMETER.match(inner)
        if match is None:
            word.add(NOT_KNOWN, is_quoted=is_quoted)
            return
        name, index = match["name"], match["index"]
        operator = _OPERATOR.match(inner, match.end())
        if match.end() == len(inner):
            self._add(word, name, index, is_quoted=is_quoted)
        elif operator is None:
            word.add(NOT_KNOWN, is_quoted=is_quoted)
        else:
            operand, start = inner[operator.end() :], at + operator.end()
            self._with_operator(word, name, index, operator[0], operand, start, is_quoted=is_quoted)

    def _with_operator(
        self, word: _Word, name: str, index: str | None, operator: str, operand: str, at: int, *, is_quoted: bool
    ) -> None:
        is_list = name in ("@", "*") or index in ("@", "*")
        if operator.lstrip(":") in ("-", "=", "?", "+") and operator != ":":
            self._default(word, name, index, operator, operand, at, is_quoted=is_quoted)
            return
        if is_list:
            values = self._shell.positional if name in ("@", "*") else self._shell.variables.elements(name)
            if operator == ":":
                values = self._slice_of(values, operand, at, is_positional=name in ("@", "*"))
            else:
                values = [self._changed(value, operator, operand, at) for value in values]
            self._add_values(word, values, is_star="*" in (name, index), is_quoted=is_quoted)
            return
        value = self._value(name, index)
        changed = EMPTY if value is None else self._changed(value, operator, operand, at)
        word.add(changed, is_quoted=is_quoted, is_split=not is_quoted)

    def _default(
        self, word: _Word, name: str, index: str | None, operator: str, operand: str, at: int, *, is_quoted: bool
    ) -> None:
        """`${NAME:-text}` and the like."""
        is_list = name in ("@", "*") or index in ("@", "*")
        values = (
            (self._shell.positional if name in ("@", "*") else self._shell.variables.elements(name)) if is_list else []
        )
        value = joined(values, " ") if is_list else self._value(name, index)
        is_unknown = value is not None and not value.is_known and (operator[0] == ":" or self._is_open(name))
        is_missing = (value is None or (is_list and not values)) or (operator[0] == ":" and value.text == "")
        kind = operator[-1]
        if is_unknown and self._is_open(name) and kind in "-=":
            self._operand(word, operand, at, is_quoted=is_quoted)  # the file does not set it
        elif is_unknown and kind == "+":
            word.add(NOT_KNOWN, is_quoted=is_quoted, is_split=not is_quoted)
        elif (kind == "+") == is_missing and kind == "+":
            word.add(EMPTY, is_quoted=is_quoted, is_split=not is_quoted)
        elif kind == "+" or (is_missing and kind in "-="):
            if kind == "=" and _NAME.fullmatch(name):
                self._shell.variables.assign(name, self.single(operand, at))
                self._add(word, name, index, is_quoted=is_quoted)
            else:
                self._operand(word, operand, at, is_quoted=is_quoted)
        elif is_missing:
            raise UnsetParameter(name)
        else:
            self._add(word, name, index, is_quoted=is_quoted)
        if is_unknown and kind == "=" and self._is_open(name):
            self._shell.variables.assign(name, self.single(operand, at))

    def _is_open(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and self._shell.variables.is_open(name)

    def _operand(self, word: _Word, operand: str, at: int, *, is_quoted: bool) -> None:
        """The text after an operator: quoted like the expansion it is in."""
        if is_quoted:
            text = operand
            if '"' in text:
                text = re.sub(r'(?<!\\)"', "", text)
            self._double(word, text, at)
            return
        inner = self._read(operand, at)
        for number, parts in enumerate(inner.fields):
            if number:
                word.fields.append([])
            for part in parts:
                word.fields[-1].append(_Part(part.value, part.is_quoted, not part.is_quoted))
        word.has_list = word.has_list or inner.has_list

    def _length(self, name: str, index: str | None) -> Value:
        if name in ("@", "*") or index in ("@", "*"):
            values = self._shell.positional if name in ("@", "*") else self._shell.variables.elements(name)
            if name not in ("@", "*") and self._is_open(name):
                return NOT_KNOWN
            return text_value(str(len(values)), *values)
        value = self._value(name, index) or EMPTY
        return text_value(str(len(value.text)), value) if value.is_known else value

    def _indirect(self, word: _Word, inner: str, at: int, *, is_quoted: bool) -> None:
        """`${!NAME}`, `${!NAME[@]}`, `${!PREFIX*}`."""
        listed = re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", inner, re.ASCII)
        if listed:
            keys = [Value(key) for key in self._shell.variables.indices(listed[1])]
            self._add_values(word, keys, is_star=inner.endswith("*]"), is_quoted=is_quoted)
            return
        if re.fullmatch(r"[A-Za-z_]\w*[@*]", inner, re.ASCII):
            names = sorted(name for name in self._shell.variables if name.startswith(inner[:-1]))
            values = [Value(name) for name in names] if self._shell.variables.is_closed else [NOT_KNOWN]
            self._add_values(word, values, is_star=inner.endswith("*"), is_quoted=is_quoted)
            return
        match = _PARAMETER.match(inner)
        target = None if match is None else self._value(match["name"], match["index"])
        if match is None or target is None or not target.is_known or not _PARAMETER.fullmatch(target.text):
            word.add(NOT_KNOWN, is_quoted=is_quoted, is_split=not is_quoted)
            return
        self._parameter(word, target.text + inner[match.end() :], at, is_quoted=is_quoted)

    def _changed(self, value: Value, operator: str, operand: str, at: int) -> Value:
        """A text after `#`, `%`, `/`, `^`, `,` or `:offset:length`."""
        if operator == ":":
            return self._slice_of_text(value, operand, at)
        if not value.is_known:
            return value.without_knowledge()
        if operator[0] == "@":
            return value if operator in ("@P",) else value.without_knowledge()
        if operator[0] in "^,":
            return value.with_text(case_changed(value.text, operator)) if not operand else value.without_knowledge()
        if operator[0] == "/":
            cut = unquoted_slash(operand, int(operator == "//"))  # a pattern may begin with a slash
            shape, by = self.pattern(operand[:cut], at), self.single(operand[cut + 1 :], at + cut + 1)
            if not (shape.is_known and by.is_known):
                return text_value(UNKNOWN, value, shape, by)
            return text_value(replaced(value.text, operator, shape.text, by.text), value, shape, by)
        shape = self.pattern(operand, at)
        if not shape.is_known:
            return text_value(UNKNOWN, value, shape)
        try:
            return text_value(removed(value.text, operator, shape.text), value, shape)
        except TooManyWords:
            return value.without_knowledge()

    def _bounds(self, operand: str, at: int) -> tuple[Value, Value | None]:
        cut = colon(operand)
        offset = self.number(operand[:cut], at)
        length = self.number(operand[cut + 1 :], at + cut + 1) if cut < len(operand) else None
        return offset, length

    def _slice_of_text(self, value: Value, operand: str, at: int) -> Value:
        offset, length = self._bounds(operand, at)
        known = [each for each in (value, offset, length) if each is not None]
        if not all(each.is_known for each in known):
            return text_value(UNKNOWN, *known)
        start = int(offset.text)
        start = start + len(value.text) if start < 0 else start
        if start < 0:
            return text_value("", *known)
        if length is None:
            return text_value(value.text[start:], *known)
        count = int(length.text)
        end = start + count if count >= 0 else len(value.text) + count
        return text_value(value.text[start : max(start, end)], *known)

    def _slice_of(self, values: list[Value], operand: str, at: int, *, is_positional: bool) -> list[Value]:
        offset, length = self._bounds(operand, at)
        if not offset.is_known or (length is not None and not length.is_known):
            return [NOT_KNOWN]
        items = [self._shell.special("0"), *values] if is_positional else values
        start = int(offset.text)
        start = start + len(items) if start < 0 else start
        return items[start:] if length is None else items[start : start + max(0, int(length.text))]


class _Drawing:
    """The variables of a shell for arithmetic, in which `RANDOM` is another number each time."""

    def __init__(self, shell: ShellView) -> None:
        self._shell = shell

    def read_number(self, name: str) -> str:
        drawn = self._shell.drawn(name)
        return self._shell.variables.read_number(name) if drawn is None else drawn.text

    def write_number(self, name: str, number: int) -> None:
        self._shell.variables.write_number(name, number)


def _fields(parts: list[_Part], ifs: str) -> list[Value]:
    """One field after splitting."""
    found: list[list[Value]] = []
    current: list[Value] = []
    is_open = False

    def end() -> None:
        nonlocal current, is_open
        if is_open:
            found.append(current)
        current, is_open = [], False

    for part in parts:
        if not part.is_split or part.is_quoted or not ifs or part.value.text == UNKNOWN:
            if part.is_quoted or part.value.text or not part.is_split:
                current.append(part.value)
                is_open = True
            continue
        for number, piece in enumerate(_pieces(part.value.text, ifs)):
            if number:
                end()
            if piece is not None:
                current.append(part.value.with_text(piece))
                is_open = True
    end()
    return [joined(values) for values in found]


def _pieces(text: str, ifs: str) -> list[str | None]:
    """The pieces of a text between separators; None where there is a space at an end, which ends a field and begins none."""
    blanks = "".join(sign for sign in ifs if sign in " \t\n")
    others = "".join(sign for sign in ifs if sign not in " \t\n")
    if not text:
        return []
    pieces: list[str | None] = []
    at = 0
    if blanks and text[0] in blanks:
        pieces.append(None)
        while at < len(text) and text[at] in blanks:
            at += 1
    while at < len(text):
        start = at
        while at < len(text) and text[at] not in ifs:
            at += 1
        pieces.append(text[start:at])
        if at == len(text):
            return pieces
        while at < len(text) and text[at] in blanks:
            at += 1
        if at < len(text) and text[at] in others:
            at += 1
            while at < len(text) and text[at] in blanks:
                at += 1
        if at == len(text):
            pieces.append(None)
    return pieces


def _is_home(text: str, at: int, *, is_assignment: bool) -> bool:
    if text[at + 1 : at + 2] not in ("", "/", ":"):
        return False
    return at == 0 or (is_assignment and text[at - 1] == ":")


def _ansi(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] in "xuU":
            return chr(int(code[1:], 16)) if len(code) > 1 and int(code[1:], 16) < 0x110000 else "\\" + code
        return _ANSI.get(code, code if code in "\\'\"?" else "\\" + code)

    return re.sub(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|.)", one, text, flags=re.DOTALL)
