"""How a launcher's argument parser reads its words: Python's argparse, step by step, with the place of every word kept.

argparse reads in two passes. First each word gets a letter: O for what looks like an option, A for an argument, `-` for
the first `--`. Then options and positionals are read from left to right; the first positional is the script, and the
rest of the line is passed to it, options or not. An unknown word (`$ARGS`) may contain options or the script: the reading
is then `is_open`, and the absence of an option proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ddpdoctor.facts.launch.reading import Given, ParseProblem, ParseProblemKind, Reading
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Option
from ddpdoctor.light_dataclass import dataclass

__all__ = ["read"]

_SCRIPT = re.compile(r"\.(py|sh)$")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@lru_cache(maxsize=64)
def _flags(options: tuple[Option, ...]) -> dict[str, Option | None]:
    flags: dict[str, Option | None] = {"-h": None, "--help": None}
    flags.update({flag: option for option in options for flag in option.flags})
    return flags


@dataclass(slots=True)
class _Found:
    """A word that looks like an option: the spelling it matches ("" for none) and the value after its `=`."""

    flag: str
    written: str
    value: str | None


def read(words: Sequence[Word], options: tuple[Option, ...], *, abbreviations: bool = True) -> Reading:
    """Read the words that follow the launcher's name.

    Args:
        options: the launcher's table.
        abbreviations: argparse's `allow_abbrev`.
    """
    return _OptionParser(words, options, abbreviations).read()


class _OptionParser:
    def __init__(self, words: Sequence[Word], options: tuple[Option, ...], abbreviations: bool) -> None:
        self.words = words
        self.flags = _flags(options)
        self.abbreviations = abbreviations
        self.given: list[Given] = []
        self.problems: list[ParseProblem] = []
        self.is_open = False
        self.is_help = False
        self.separator: Word | None = None

    def read(self) -> Reading:
        found = self._classify()
        script = self._take(found)
        if self.is_help:
            return Reading(given=tuple(self.given), is_help=True)
        arguments: tuple[Word, ...] = ()
        if script is not None:
            rest = script + 1
            if rest < len(self.words) and self.words[rest] is self.separator:
                rest += 1  # a `--` right after the script is dropped as well
            arguments = tuple(self.words[rest:])
        elif not self.is_open and not any(p.trouble is not ParseProblemKind.UNRECOGNIZED for p in self.problems):
            self._trouble(ParseProblemKind.NO_SCRIPT, self.words[-1] if self.words else Word(""))
        return Reading(
            given=tuple(self.given),
            problems=tuple(self.problems),
            script=None if script is None else self.words[script],
            arguments=arguments,
            is_open=self.is_open,
            separator=self.separator,
        )

    def _classify(self) -> dict[int, _Found]:
        found: dict[int, _Found] = {}
        for i, word in enumerate(self.words):
            if word.text == "--":
                self.separator = word
                break
            each = self._optional(word)
            if each is not None:
                found[i] = each
        return found

    def _optional(self, word: Word) -> _Found | None:
        text = word.text
        if not text.startswith("-") or text == "-":
            return None
        if text in self.flags:
            return _Found(text, text, None)
        name, sign, value = text.partition("=")
        if sign and name in self.flags:
            return _Found(name, name, value)
        if UNKNOWN in name:
            return _Found("", text, None)
        matches = self._matches(text)
        if len(matches) > 1:
            self.problems.append(
                ParseProblem(ParseProblemKind.AMBIGUOUS, word, name, value, tuple(m.flag for m in matches))
            )
            return _Found("?", name, value if sign else None)
        if matches:
            return matches[0]
        if _NEGATIVE_NUMBER.fullmatch(text) or " " in text:
            return None
        return _Found("", text, None)

    def _matches(self, text: str) -> list[_Found]:
        if text.startswith("--"):
            name, sign, value = text.partition("=")
            if not self.abbreviations:
                return []
            return [_Found(f, name, value if sign else None) for f in self.flags if f.startswith(name)]
        return [_Found(f, f, text[2:]) for f in self.flags if f == text[:2]]

    def _take(self, found: dict[int, _Found]) -> int | None:
        """The index of the script. All words after one that may be the script may be its arguments, unless a script follows."""
        i, sure = 0, None
        while i < len(self.words):
            word = self.words[i]
            if i in found:
                i = self._consume(i, found[i], found)
                if self.is_help:
                    return None
            elif word is self.separator:
                i += 1
            elif word.splits:
                self.is_open = True
                sure = word.start if sure is None else sure
                i += 1
            else:
                if sure is not None and not (_SCRIPT.search(word.text) or any(g.dest == "module" for g in self.given)):
                    break
                self._mark_after(i)
                return i
        if sure is not None:
            self.given = [g for g in self.given if g.word.start < sure]
            self.problems = [p for p in self.problems if p.word.start < sure]
        return None

    def _mark_after(self, script: int) -> None:
        """Ambiguous words after the script belong to the script."""
        start = self.words[script].start
        self.problems = [
            ParseProblem(p.trouble, p.word, p.option, p.value, p.matches, p.word.start > start) for p in self.problems
        ]

    def _consume(self, i: int, found: _Found, others: dict[int, _Found]) -> int:
        word = self.words[i]
        if found.flag == "":
            if UNKNOWN in word.text:
                self.is_open = True
            else:
                self._trouble(ParseProblemKind.UNRECOGNIZED, word, found.written)
            return i + 1
        if found.flag == "?":
            has_value = found.value is not None or i + 1 in others or i + 1 >= len(self.words)
            return i + 1 if has_value else i + 2
        flag, value = found.flag, found.value
        while True:
            option = self.flags[flag]
            if option is None or option.kind == "help":
                self.is_help = True
                return i + 1
            if option.kind != "flag":
                break
            self.given.append(Given(option.dest, flag, found.written, None, word, word))
            if value is None:
                return i + 1
            following = f"-{value[:1]}"
            if flag.startswith("--") or value == "" or following not in self.flags:
                self._trouble(ParseProblemKind.IGNORED_VALUE, word, "/".join(option.flags), value)
                return i + 1
            flag, value = following, value[1:] or None
            found = _Found(flag, flag, value)
        if value is not None:
            self._accept(option, flag, found.written, value, word, word)
            return i + 1
        if i + 1 >= len(self.words) or i + 1 in others or self.words[i + 1] is self.separator:
            self._trouble(ParseProblemKind.EXPECTED_VALUE, word, flag)
            return i + 1
        self._accept(option, flag, found.written, self.words[i + 1].text, word, self.words[i + 1])
        return i + 2

    def _accept(self, option: Option, flag: str, written: str, value: str, word: Word, value_word: Word) -> None:
        if UNKNOWN not in value:
            if not _converts(option.kind, value):
                self._trouble(ParseProblemKind.INVALID_VALUE, value_word, flag, value)
            elif option.choices and value not in option.choices:
                self._trouble(ParseProblemKind.INVALID_CHOICE, value_word, flag, value)
        self.given.append(Given(option.dest, flag, written, value, word, value_word))

    def _trouble(self, trouble: ParseProblemKind, word: Word, option: str = "", value: str = "") -> None:
        self.problems.append(ParseProblem(trouble, word, option, value))


def _converts(kind: str, value: str) -> bool:
    try:
        if kind == "int":
            int(value)
        elif kind == "float":
            float(value)
    except ValueError:
        return False
    return True
