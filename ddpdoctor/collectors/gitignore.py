"""Which files of a folder git would ignore, with nested .gitignore files and negation; pathspec parses the patterns."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.regular_file import read_regular

__all__ = ["IgnoreRules", "rules_above"]

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns that apply in one folder, those of its parents first. `levels`: (folder, patterns of pathspec)."""

    levels: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def inside(self, folder: str) -> IgnoreRules:
        """The rules inside `folder`, with its own .gitignore last."""
        patterns = _read(os.path.join(folder, ".gitignore"))
        return IgnoreRules((*self.levels, (folder, patterns))) if patterns else self

    def matches(self, path: str, is_folder: bool) -> bool:
        """Whether git ignores the path: the last pattern that matches decides. Its folder is known not to be ignored."""
        for folder, patterns in reversed(self.levels):
            below = os.path.relpath(path, folder).replace(os.sep, "/") + "/" * is_folder
            for pattern in reversed(patterns):
                if _matches_itself(pattern, below):
                    return bool(pattern.include)
        return False


def _matches_itself(pattern: Any, path: str) -> bool:
    """Whether the pattern matches this path itself. pathspec also matches paths inside a matching folder; git decides on
    the folder, and `!c/` does not re-include the files in c.
    """
    has_folder = "ps_d" in pattern.regex.groupindex  # pathspec's group for the slash after a folder
    return any(not has_folder or m.end("ps_d") in (-1, len(path)) for m in pattern.regex.finditer(path))


def rules_above(folder: str) -> IgnoreRules:
    """The rules of the .gitignore files above `folder`, up to the root of its repository; none outside of a repository."""
    folders = []
    here = os.path.realpath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:
            return IgnoreRules()
        folders.append(parent)
        here = parent
    rules = IgnoreRules(((here, _read(os.path.join(here, ".git", "info", "exclude"))),))
    for parent in reversed(folders):
        rules = rules.inside(parent)
    return rules


def _read(path: str) -> tuple[Any, ...]:
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:  # no such file, or not readable: git would ignore nothing either
        return ()
    return tuple(pattern for line in text.removeprefix("\ufeff").splitlines() for pattern in _patterns(line))


def _patterns(line: str) -> list[Any]:
    """The pattern of one line; [] for a comment, an empty line, and a pattern that matches no path, such as [z-a]."""
    from pathspec import GitIgnoreSpec  # imported only if there is such a file

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of re, about classes such as [[]
            patterns = GitIgnoreSpec.from_lines([line.replace("\\/", "/")]).patterns
    except (ValueError, re.error):
        return []
    return [pattern for pattern in patterns if pattern.include is not None]
