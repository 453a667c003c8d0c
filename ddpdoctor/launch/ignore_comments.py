"""Comments that silence findings: `# ddpdoctor: ignore[SCRIPT014]` on the line, several codes or prefixes, or all."""

from __future__ import annotations

import io
import re
import tokenize

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Comment", "codes_in", "comments"]

_IGNORE = re.compile(r"#\s*ddpdoctor:\s*ignore\b(?:\[([\w\s,]*)\])?")
_ENDS = (tokenize.NEWLINE, tokenize.ENDMARKER)
_NO_CODE = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment in Python source that silences findings on the lines `first` to `last` of its statement; lines count
    from 1.

    `codes` are codes or their beginnings; "" is the beginning of every code.
    """

    line: int
    column: int
    first: int
    last: int
    codes: tuple[str, ...]

    def silences(self, code: str, line: int) -> bool:
        """Whether it silences this code on this line."""
        return self.first <= line <= self.last and code.startswith(self.codes)


def codes_in(line: str) -> tuple[str, ...] | None:
    """The beginnings of codes that a comment on this line silences ("" for all of them); None without such a comment."""
    match = _IGNORE.search(line)
    if match is None:
        return None
    if match[1] is None:
        return ("",)
    return tuple(code.strip().upper() for code in match[1].split(",") if code.strip())


def comments(text: str) -> tuple[Comment, ...]:
    """The comments of Python source, up to the first syntax error."""
    if "ddpdoctor" not in text:
        return ()
    found: list[Comment] = []
    waiting: list[tuple[int, int, tuple[str, ...]]] = []
    start: int | None = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            row, column = token.start
            if token.type == tokenize.COMMENT:
                silenced = codes_in(token.string)
                waiting += [] if silenced is None else [(row, column + 1, silenced)]
            elif token.type in _ENDS or (token.type == tokenize.NL and start is None):
                found += [Comment(line, at, start or row, row, codes) for line, at, codes in waiting]
                waiting.clear()
                start = None
            elif token.type not in _NO_CODE and start is None:
                start = row
    except (tokenize.TokenError, SyntaxError):
        pass  # the syntax error is another finding
    return tuple(found)
