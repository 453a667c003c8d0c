"""Where a quoted text or an expansion of shell text ends: indices of its last character."""

from __future__ import annotations

__all__ = ["closing_of", "colon", "end_of_ansi", "end_of_backquote", "end_of_string", "unquoted_slash"]

DEEPEST = 60
"""Expansions within expansions."""


def end_of_string(text: str, index: int, level: int = 0) -> int:
    """The index of the double quote that ends a string."""
    while index < len(text):
        sign = text[index]
        if sign == "\\":
            index += 2
        elif sign == '"':
            return index
        elif sign == "`":
            index = end_of_backquote(text, index + 1) + 1
        elif sign == "$" and text[index + 1 : index + 2] in ("(", "{"):
            end = closing_of(text, index + 2, ")" if text[index + 1] == "(" else "}", level + 1)
            index = end + 1 if end >= 0 else index + 2
        else:
            index += 1
    return len(text)


def end_of_ansi(text: str, index: int) -> int:
    """The index of the quote that ends `$'…`."""
    while index < len(text) and text[index] != "'":
        index += 2 if text[index] == "\\" else 1
    return min(index, len(text))


def end_of_backquote(text: str, index: int) -> int:
    """The index of the backquote that ends a substitution."""
    while index < len(text) and text[index] != "`":
        index += 2 if text[index] == "\\" else 1
    return min(index, len(text))


def closing_of(text: str, index: int, closing: str, level: int = 0) -> int:
    """The index at which an expansion ends; -1 where it does not, or is nested too deeply."""
    if level > DEEPEST:
        return -1
    depth = 0
    opening = {")": "(", "))": "(", "}": "{", "]": "["}[closing]
    while index < len(text):
        sign = text[index]
        if sign == "\\":
            index += 2
            continue
        if sign == "'" and closing in (")",):
            end = text.find("'", index + 1)
            index = len(text) if end < 0 else end + 1
            continue
        if sign == "'" and closing == "}":
            end = text.find("'", index + 1)
            if end >= 0:
                index = end + 1
                continue
        if sign == '"':
            index = end_of_string(text, index + 1, level + 1) + 1
            continue
        if sign == "`":
            index = end_of_backquote(text, index + 1) + 1
            continue
        if sign == "$" and text[index + 1 : index + 2] in ("(", "{"):
            end = closing_of(text, index + 2, ")" if text[index + 1] == "(" else "}", level + 1)
            if end < 0:
                return -1
            index = end + 1
            continue
        if depth == 0 and text.startswith(closing, index):
            return index
        if sign == opening and closing != "}":
            depth += 1
        elif sign == closing[0] and closing != "}":
            depth -= 1
            if depth < 0:
                return -1
        index += 1
    return -1


def unquoted_slash(text: str, start: int = 0) -> int:
    """The index of the slash between a pattern and its replacement; the length where there is none."""
    index = start if text.startswith("/") else 0
    while index < len(text):
        if text[index] == "\\":
            index += 2
        elif text[index] in "'\"":
            end = text.find(text[index], index + 1)
            index = len(text) if end < 0 else end + 1
        elif text.startswith("${", index) or text.startswith("$(", index):
            end = closing_of(text, index + 2, "}" if text[index + 1] == "{" else ")")
            index = end + 1 if end >= 0 else index + 2
        elif text[index] == "/":
            return index
        else:
            index += 1
    return len(text)


def colon(text: str) -> int:
    """The index of the colon between offset and length, outside of parentheses and of `?:`."""
    depth = questions = 0
    for index, sign in enumerate(text):
        depth += (sign in "({[") - (sign in ")}]")
        questions += sign == "?"
        if sign == ":" and depth == 0:
            if questions == 0:
                return index
            questions -= 1
    return len(text)
