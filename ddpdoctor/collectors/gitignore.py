"""Which files of a folder git would ignore: the patterns of .gitignore files, nested ones and negation included."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

__all__ = ["Ignored", "above"]

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One line of a .gitignore: matched against the path below its folder."""

    regex: re.Pattern[str]
    negates: bool
    only_folders: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns that hold in one folder: those of the folders above first, its own last."""

    levels: tuple[tuple[str, tuple[_Pattern, ...]], ...] = ()

    def inside(self, folder: str) -> Ignored:
        """What holds inside `folder`: its own .gitignore counts last."""
        patterns = _read(os.path.join(folder, ".gitignore"))
        return Ignored((*self.levels, (folder, patterns))) if patterns else self

    def matches(self, path: str, is_folder: bool) -> bool:
        """Whether git ignores the path: the last pattern that matches decides. Its folder is known not to be ignored."""
        for folder, patterns in reversed(self.levels):
            below = os.path.relpath(path, folder).replace(os.sep, "/")
            for pattern in reversed(patterns):
                if (is_folder or not pattern.only_folders) and pattern.regex.fullmatch(below):
                    return not pattern.negates
        return False


def above(folder: str) -> Ignored:
    """What the .gitignore files above `folder` say, up to the top of its repository; nothing outside of one."""
    folders = []
    here = os.path.realpath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:
            return Ignored()
        folders.append(parent)
        here = parent
    ignored = Ignored(((here, _read(os.path.join(here, ".git", "info", "exclude"))),))
    for each in reversed(folders):
        ignored = ignored.inside(each)
    return ignored


def _read(path: str) -> tuple[_Pattern, ...]:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:  # there is none, or it is closed to us: git would ignore nothing then either
        return ()
    found = (_pattern(line) for line in text.removeprefix("\ufeff").splitlines())
    return tuple(each for each in found if each is not None)


def _pattern(line: str) -> _Pattern | None:
    line = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line)
    if not line or line.startswith("#"):
        return None
    negates = line.startswith("!")
    line = line[negates:]
    only_folders = line.endswith("/")
    line = line.rstrip("/") if only_folders else line
    if not line:
        return None
    is_anchored = "/" in line
    try:
        regex = re.compile(("" if is_anchored else "(?:.*/)?") + _translated(line.lstrip("/")))
    except re.error:  # such as [z-a], which matches nothing for git
        return None
    return _Pattern(regex, negates, only_folders)


_PIECE = re.compile(r"\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?[^\]]*\]|\\.|.", re.DOTALL)


def _translated(glob: str) -> str:
    """The regular expression of a pattern: `*` and `?` stay in a folder, `**/` and `/**` cross folders."""
    out = []
    for match in _PIECE.finditer(glob):
        piece = match[0]
        if piece == "**/" and (match.start() == 0 or glob[match.start() - 1] == "/"):
            out.append("(?:.*/)?")
        elif piece == "/**":
            out.append("/.+")
        elif piece.startswith("*"):
            out.append("[^/]*" + re.escape(piece.lstrip("*")))
        elif piece == "?":
            out.append("[^/]")
        elif piece.startswith("[") and len(piece) > 2:
            inner = re.sub(r"\\?([][\\^&~|])", r"\\\1", piece[2:-1] if piece[1] in "!^" else piece[1:-1])
            out.append(f"(?!/)[{'^' if piece[1] in '!^' else ''}{inner}]")
        else:
            out.append(re.escape(piece.removeprefix("\\") or piece))
    return "".join(out)
