"""Patterns of the shell (`*`, `?`, `[a-z]`) as regular expressions, braces, and the forms of `${…}` that use them."""

from __future__ import annotations

import functools
import itertools
import re

__all__ = ["TooManyWords", "braces", "case_changed", "pattern", "removed", "replaced"]

MOST_WORDS = 2_000
"""Words that one brace expression may make."""
LONGEST_TEXT = 20_000
"""Characters of a text that patterns are applied to."""


class TooManyWords(ValueError):
    """A brace expression makes more words than are ever written."""


@functools.lru_cache(512)
def pattern(text: str) -> re.Pattern[str]:
    """The expression of a shell pattern; a backslash makes the next character literal."""
    out: list[str] = []
    at = 0
    while at < len(text):
        sign = text[at]
        at += 1
        if sign == "*":
            out += [] if out and out[-1] == ".*" else [".*"]
        elif sign == "?":
            out.append(".")
        elif sign == "\\" and at < len(text):
            out.append(re.escape(text[at]))
            at += 1
        elif sign == "[" and (end := _end_of_set(text, at)):
            out.append(_set(text[at:end]))
            at = end + 1
        else:
            out.append(re.escape(sign))
    return re.compile("".join(out), re.DOTALL)


def _end_of_set(text: str, at: int) -> int:
    """The index of the bracket that closes a set; 0 where none does."""
    start = at + (text[at : at + 1] in ("!", "^"))
    end = text.find("]", start + 1)
    while end > 0 and text.rfind("[:", at, end) > text.rfind(":]", at, end):
        end = text.find("]", end + 1)
    return max(end, 0)


_CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s"}


def _set(inside: str) -> str:
    is_not = inside[:1] in ("!", "^")
    inside = inside[is_not:]
    inside = re.sub(r"\[:(\w+):\]", lambda found: f"\0{found[1]}\0", inside)
    escaped = re.sub(r"[\\\[\]^&~|]", lambda found: "\\" + found[0], inside)
    escaped = re.sub("\0(\\w+)\0", lambda found: _CLASSES.get(found[1], ""), escaped)
    try:
        re.compile(f"[{escaped}]")
    except re.error:
        return re.escape(f"[{inside}]")
    return f"[{'^' if is_not else ''}{escaped}]"


def removed(text: str, operator: str, shape: str) -> str:
    """`${x#shape}`, `##`, `%`, `%%`."""
    if len(text) > LONGEST_TEXT:
        raise TooManyWords("too long")
    matcher = pattern(shape)
    sizes = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
    for size in sizes:
        piece = text[:size] if operator[0] == "#" else text[len(text) - size :]
        if matcher.fullmatch(piece):
            return text[size:] if operator[0] == "#" else text[: len(text) - size]
    return text


def replaced(text: str, operator: str, shape: str, by: str) -> str:
    """`${x/shape/by}`, `//`, `/#`, `/%`: the longest match at each place."""
    if len(text) > LONGEST_TEXT or (not shape and operator in ("/", "//")):
        return text
    matcher = pattern(shape)
    if operator == "/#":
        size = next((n for n in range(len(text), -1, -1) if matcher.fullmatch(text[:n])), None)
        return text if size is None else by + text[size:]
    if operator == "/%":
        size = next((n for n in range(len(text), -1, -1) if matcher.fullmatch(text[len(text) - n :])), None)
        return text if size is None else text[: len(text) - size] + by
    out, at = [], 0
    while at < len(text):
        end = next((n for n in range(len(text), at, -1) if matcher.fullmatch(text, at, n)), None)
        if end is None:
            out.append(text[at])
            at += 1
            continue
        out.append(by)
        at = end
        if operator == "/":
            break
    return "".join(out) + text[at:]


def case_changed(text: str, operator: str) -> str:
    """`${x^}`, `^^`, `,`, `,,`."""
    change = str.upper if operator[0] == "^" else str.lower
    return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]


def braces(text: str) -> list[str]:
    """The words of `a{b,c}d` and `x{1..3}`; `text` has its quoted characters behind a backslash.

    Raises:
        TooManyWords: it makes more than MOST_WORDS words.
    """
    found = _brace(text)
    if found is None:
        return [text]
    start, end, parts = found
    tails = braces(text[end + 1 :])
    heads = [inner for part in parts for inner in braces(part)]
    if len(heads) * len(tails) > MOST_WORDS:
        raise TooManyWords(f"more than {MOST_WORDS} words")
    return [text[:start] + head + tail for head, tail in itertools.product(heads, tails)]


def _brace(text: str) -> tuple[int, int, list[str]] | None:
    """The position of the first brace expression of a text, and its alternatives."""
    start = 0
    while (start := _unescaped(text, "{", start)) >= 0:
        if text[start - 1 : start] == "$" and not (start > 1 and text[start - 2] == "\\"):
            start += 1
            continue
        end, commas = _closing(text, start)
        if end is not None:
            if commas:
                cuts = [start, *commas, end]
                return start, end, [text[a + 1 : b] for a, b in itertools.pairwise(cuts)]
            sequence = _sequence(text[start + 1 : end])
            if sequence is not None:
                return start, end, sequence
        start += 1
    return None


def _unescaped(text: str, sign: str, start: int) -> int:
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == sign:
            return at
        else:
            at += 1
    return -1


def _closing(text: str, start: int) -> tuple[int | None, list[int]]:
    depth, at = 0, start
    commas: list[int] = []
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 1
        elif sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return at, commas
        elif sign == "," and depth == 1:
            commas.append(at)
        at += 1
    return None, []


def _sequence(text: str) -> list[str] | None:
    match = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?|([A-Za-z])\.\.([A-Za-z])", text)
    if match is None:
        return None
    if match[4]:
        first, last = ord(match[4]), ord(match[5])
        step = 1 if last >= first else -1
        return [chr(code) for code in range(first, last + step, step)]
    first, last = int(match[1]), int(match[2])
    by = max(1, abs(int(match[3] or 1)))
    step = by if last >= first else -by
    numbers = range(first, last + (1 if step > 0 else -1), step)
    if len(numbers) > MOST_WORDS:
        raise TooManyWords(f"more than {MOST_WORDS} words")
    is_padded = any(re.match(r"-?0\d", side) for side in (match[1], match[2]))
    width = max(len(match[1]), len(match[2])) if is_padded else 0
    return [f"{number:0{width}d}" if width else str(number) for number in numbers]
