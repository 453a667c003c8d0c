"""Typing and pasting errors in launch lines: words that the parser reads differently than intended."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.facts.launch.reading import ParseProblemKind, Reading
from ddpdoctor.facts.launch.typo import Typo, TypoKind
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Option
from ddpdoctor.launch.program_names import is_program

__all__ = ["DASHES", "find_typos", "typo_before_program"]

DASHES = "‐‑‒–—―−﹣-"
QUOTES = "“”„‟‘’‚‛«»"
SPACES = "\u00a0\u2007\u202f\u3000\u2009\u200a\u2002\u2003\u200b\u2060\ufeff"
_VALUES = re.compile(r"\d+|gpu|cpu|auto|c10d|static|localhost|=.*")
_NUMBERS = re.compile(r",*\d[\d,]*")


def find_typos(reading: Reading, own: Iterable[Word], options: tuple[Option, ...]) -> tuple[Typo, ...]:
    """The typos among a launcher's own words and the script's; `own` are the words after the launcher's name."""
    names = {flag for option in options for flag in option.flags}
    words = [*own, *([reading.script] if reading.script else ())]
    found = [*_characters(words, names), *_equals(reading), *_single_dashes(reading, words, names)]
    taken = {word.start for typo in found for word in typo.words}
    found += [typo for typo in _joined(reading, words) if typo.words[0].start not in taken]
    if not found:
        found += _stray(reading)
    return tuple(sorted(found, key=lambda typo: typo.words[0].start))


def typo_before_program(words: Sequence[Word]) -> Typo | None:
    """Why the shell starts another program than the launcher on the line: `A=0, 1 torchrun`, `A = 1 torchrun`, `"$CMD"`."""
    name = words[0].text.split()
    if len(name) > 1 and words[0].raw and is_program(Word(name[0])):
        return Typo(TypoKind.JOINED, (words[0],), tuple(name))
    pair = words[0].assignment
    after = words[1].text if len(words) > 2 else ""
    if pair is None and after.startswith("=") and re.fullmatch("[A-Z][A-Z0-9_]+", words[0].text):
        used = words[1 : 3 if after == "=" else 2]
    elif pair is not None and pair[1] == "" and _NUMBERS.fullmatch(after):
        used = words[1:2]
    elif pair is not None and pair[1].endswith(",") and _NUMBERS.fullmatch(pair[1]):
        used = tuple(itertools.takewhile(lambda word: _NUMBERS.fullmatch(word.text), words[1:]))
    else:
        return None
    if not used or not any(is_program(word) for word in words[2:]):
        return None
    whole = words[0].text + "".join(word.text for word in used)
    kind = TypoKind.LIST if pair is not None and pair[1] else TypoKind.SPACED_EQUALS
    return Typo(kind, (words[0], *used), (whole,))


def _characters(words: Iterable[Word], names: set[str]) -> Iterator[Typo]:
    for word in words:
        text = word.text
        if any(c in text for c in SPACES):
            yield Typo(TypoKind.ODD_SPACE, (word,), tuple(re.sub(f"[{SPACES}]+", " ", text).split(" ")))
        elif text[:1] in DASHES[:-1] or (text[:1] == "-" and text[1:2] and text[1:2] in DASHES[:-1]):
            rest = text.lstrip(DASHES)
            dash = "-" if len(rest.partition("=")[0]) == 1 else "--"
            yield Typo(TypoKind.UNICODE_DASH, (word,), ("".join(c for c in dash + rest if c not in QUOTES),))
        elif any(c in text for c in QUOTES):
            yield Typo(TypoKind.SMART_QUOTE, (word,), ("".join(c for c in text if c not in QUOTES),))


def _equals(reading: Reading) -> Iterator[Typo]:
    for given in reading.given:
        value = given.value
        if value is None:
            continue
        script = reading.script
        if value == "=" and not given.is_joined and script is not None:
            yield Typo(
                TypoKind.SPACED_EQUALS, (given.word, given.value_word, script), (f"{given.written}={script.text}",)
            )
        elif value.startswith("=") and len(value) > 1 and not given.is_joined:
            yield Typo(TypoKind.SPACED_EQUALS, (given.word, given.value_word), (f"{given.written}{value}",))
        elif (
            value == ""
            and given.is_joined
            and given.word.text.endswith("=")
            and script is not None
            and script.raw
            and given.word.end < script.start
            and script.start - given.word.end <= 4
            and _VALUES.fullmatch(script.text)
        ):
            yield Typo(TypoKind.SPACED_EQUALS, (given.word, script), (f"{given.written}={script.text}",))


def _single_dashes(reading: Reading, words: Iterable[Word], names: set[str]) -> Iterator[Typo]:
    values = {g.value_word.start for g in reading.given if not g.is_joined}
    for word in words:
        name = word.text.partition("=")[0]
        if not name.startswith("-") or name.startswith("--") or len(name) < 4 or word.start in values:
            continue
        if f"-{name}" in names or sum(n.startswith(f"-{name}") for n in names) == 1:
            yield Typo(TypoKind.SINGLE_DASH, (word,), (f"-{word.text}",))


def _joined(reading: Reading, words: Iterable[Word]) -> Iterator[Typo]:
    values = {g.value_word.start for g in reading.given}
    for word in words:
        text = word.text
        if " " not in text or UNKNOWN in text or word.start in values:
            continue
        if re.match(r"--?[A-Za-z]", text) or re.search(r"\.py\s", text):
            yield Typo(TypoKind.JOINED, (word,), tuple(text.split()))
    for given in reading.given:
        if given.value and given.is_joined and re.search(r"\s--?[a-z]", given.value):
            yield Typo(TypoKind.JOINED, (given.word,), tuple(given.word.text.split()))


def _stray(reading: Reading) -> Iterator[Typo]:
    script = reading.script
    unread = any(
        p.trouble in (ParseProblemKind.UNRECOGNIZED, ParseProblemKind.AMBIGUOUS)
        for p in reading.problems
        if not p.after_script
    )
    if script is None or unread or not re.fullmatch(r"\d+|gpu|cpu|auto", script.text):
        return
    following = reading.arguments
    if following and (following[0].text.startswith("-") or following[0].text.endswith((".py", ".sh"))):
        yield Typo(TypoKind.STRAY, (script,))
