"""Slips of the keyboard and the clipboard: words that the parser takes for something else than was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ddpdoctor.facts.launch.options import Reading, Trouble
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Option

__all__ = ["DASHES", "Slip", "SlipKind", "find_slips"]

DASHES = "‐‑‒–—―−﹣-"
QUOTES = "“”„‟‘’‚‛«»"
SPACES = "\u00a0\u2007\u202f\u3000\u2009\u200a\u2002\u2003\u200b\u2060\ufeff"
_VALUES = re.compile(r"\d+|gpu|cpu|auto|c10d|static|localhost|=.*")


class SlipKind(str, Enum):
    """What went wrong with the word."""

    SINGLE_DASH = "single dash"
    UNICODE_DASH = "unicode dash"
    SMART_QUOTE = "smart quote"
    ODD_SPACE = "no-break space"
    JOINED = "quoted together"
    SPACED_EQUALS = "spaces around ="
    STRAY = "stray word"


@dataclass(frozen=True, slots=True)
class Slip:
    """`meant` are the words that should stand in place of `words`; empty: the words should go."""

    kind: SlipKind
    words: tuple[Word, ...]
    meant: tuple[str, ...] = ()


def find_slips(reading: Reading, own: Iterable[Word], options: tuple[Option, ...]) -> tuple[Slip, ...]:
    """The slips among a launcher's own words and the script's; `own` are the words after the launcher's name."""
    names = {flag for option in options for flag in option.flags}
    words = [*own, *([reading.script] if reading.script else ())]
    found = [*_characters(words, names), *_equals(reading), *_single_dashes(reading, words, names)]
    taken = {word.start for slip in found for word in slip.words}
    found += [slip for slip in _joined(reading, words) if slip.words[0].start not in taken]
    if not found:
        found += _stray(reading)
    return tuple(sorted(found, key=lambda slip: slip.words[0].start))


def _characters(words: Iterable[Word], names: set[str]) -> Iterator[Slip]:
    for word in words:
        text = word.text
        if any(c in text for c in SPACES):
            yield Slip(SlipKind.ODD_SPACE, (word,), tuple(re.sub(f"[{SPACES}]+", " ", text).split(" ")))
        elif text[:1] in DASHES[:-1] or (text[:1] == "-" and text[1:2] and text[1:2] in DASHES[:-1]):
            rest = text.lstrip(DASHES)
            dash = "-" if len(rest.partition("=")[0]) == 1 else "--"
            yield Slip(SlipKind.UNICODE_DASH, (word,), ("".join(c for c in dash + rest if c not in QUOTES),))
        elif any(c in text for c in QUOTES):
            yield Slip(SlipKind.SMART_QUOTE, (word,), ("".join(c for c in text if c not in QUOTES),))


def _equals(reading: Reading) -> Iterator[Slip]:
    for given in reading.given:
        value = given.value
        if value is None:
            continue
        script = reading.script
        if value == "=" and not given.is_joined and script is not None:
            yield Slip(
                SlipKind.SPACED_EQUALS, (given.word, given.value_word, script), (f"{given.written}={script.text}",)
            )
        elif value.startswith("=") and len(value) > 1 and not given.is_joined:
            yield Slip(SlipKind.SPACED_EQUALS, (given.word, given.value_word), (f"{given.written}{value}",))
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
            yield Slip(SlipKind.SPACED_EQUALS, (given.word, script), (f"{given.written}={script.text}",))


def _single_dashes(reading: Reading, words: Iterable[Word], names: set[str]) -> Iterator[Slip]:
    values = {g.value_word.start for g in reading.given if not g.is_joined}
    for word in words:
        name = word.text.partition("=")[0]
        if not name.startswith("-") or name.startswith("--") or len(name) < 4 or word.start in values:
            continue
        if f"-{name}" in names or sum(n.startswith(f"-{name}") for n in names) == 1:
            yield Slip(SlipKind.SINGLE_DASH, (word,), (f"-{word.text}",))


def _joined(reading: Reading, words: Iterable[Word]) -> Iterator[Slip]:
    values = {g.value_word.start for g in reading.given}
    for word in words:
        text = word.text
        if " " not in text or UNKNOWN in text or word.start in values:
            continue
        if re.match(r"--?[A-Za-z]", text) or re.search(r"\.py\s", text):
            yield Slip(SlipKind.JOINED, (word,), tuple(text.split()))
    for given in reading.given:
        if given.value and given.is_joined and re.search(r"\s--?[a-z]", given.value):
            yield Slip(SlipKind.JOINED, (given.word,), tuple(given.word.text.split()))


def _stray(reading: Reading) -> Iterator[Slip]:
    script = reading.script
    unread = any(p.trouble in (Trouble.UNRECOGNIZED, Trouble.AMBIGUOUS) for p in reading.problems if not p.after_script)
    if script is None or unread or not re.fullmatch(r"\d+|gpu|cpu|auto", script.text):
        return
    following = reading.arguments
    if following and (following[0].text.startswith("-") or following[0].text.endswith((".py", ".sh"))):
        yield Slip(SlipKind.STRAY, (script,))
