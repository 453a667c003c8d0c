"""`ddpdoctor explain`: the rules that match words or the text of an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from ddpdoctor.app.request import UsageError
from ddpdoctor.rules import AREAS, Rule, load

__all__ = ["search"]

CODE = re.compile(rf"({'|'.join(AREAS)})[-_ ]?(\d+)(\D*)", re.IGNORECASE)
LONGEST = 80
FLEXIBLE = re.compile(r"\\[sS][*+]?|\\[bB]|[\\()^$?*+.]")
"""The parts of a signature between the words of the text that it matches."""


def search(wanted: str) -> tuple[Rule, ...]:
    """The rules that `wanted` means, best first: the one with this code or name, otherwise all that mention it.

    A match in the name counts more than one in the title, this more than a signature that matches the text, this more
    than the text of the manual.

    Raises:
        UsageError: no rule matches; the message names the nearest codes or names.
    """
    known = load()
    word = " ".join(wanted.lower().split())
    name = word.replace("_", "-")
    exact = tuple(each for each in known if name in (each.code.lower(), each.name))
    found = exact or tuple(each for each in known if word and each.code.lower().startswith(word))
    if found or not word or CODE.fullmatch(word):
        return found or _nothing(wanted, name, known)
    ranked = sorted((_rank(each, word, wanted), _absent(each, word), each.code, each) for each in known)
    return tuple(each for rank, _, _, each in ranked if rank < NO_MATCH) or _nothing(wanted, name, known)


NO_MATCH = 5


def _rank(rule: Rule, word: str, text: str) -> int:
    """How well a rule matches: 0 is its name, NO_MATCH not at all."""
    words = word.split()
    if all(each in rule.name.split("-") for each in words) or word.replace(" ", "-") in rule.name:
        return 0
    if _speaks_of(words, rule.title):
        return 1
    if any(re.search(signature, text) or re.search(signature, text, re.IGNORECASE) for signature in rule.signatures):
        return 2
    if len(word) > 3 and any(word in _plain(signature) for signature in rule.signatures):
        return 3
    return 4 if _speaks_of(words, rule.doc) else NO_MATCH


def _absent(rule: Rule, word: str) -> int:
    """How many of the words are missing from the name and the title: fewer is better."""
    return sum(not _speaks_of([each], f"{rule.name} {rule.title}") for each in word.split())


def _speaks_of(words: Sequence[str], text: str) -> bool:
    """Whether every word begins a word of the text."""
    text = text.lower()
    return all(re.search(rf"(?<![a-z0-9]){re.escape(word)}", text) for word in words)


def _plain(signature: str) -> str:
    """Roughly the text that a signature matches, to be compared with a part of such a text."""
    return " ".join(FLEXIBLE.sub(" ", signature).lower().split())


def _nothing(wanted: str, name: str, known: Sequence[Rule]) -> tuple[Rule, ...]:
    """Always raises, with the codes or names nearest to `wanted`."""
    shown = " ".join(wanted.split())[:LONGEST]
    code = CODE.fullmatch(" ".join(wanted.split()))
    codes = {each.code for each in known}
    padded = f"{code[1].upper()}{int(code[2]):03d}" if code is not None and len(code[2]) < 6 else ""
    near = [padded] if padded in codes else []
    if not near:
        names = {each.code.lower(): each.code for each in known} | {each.name: each.name for each in known}
        near = [names[key] for key in get_close_matches(name[:LONGEST], names, 3)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`ddpdoctor rules` lists all"
    raise UsageError(f"unknown rule {shown!r}; {hint}")
