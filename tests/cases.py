"""Reads fixtures/cases/CODE.txt (one file per cause) and fixtures/situations/*.txt: the format is in docs/cases.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from machines import FIXTURES

__all__ = ["CASES", "KEYS", "SITUATIONS", "Case", "CaseError", "all_cases", "named", "notes", "read"]

CASES = FIXTURES / "cases"
SITUATIONS = FIXTURES / "situations"

KEYS = {
    "machine": {"on", "launch", "severity", "message", "fix", "count", "ranks", "where", "skipped"},
    "launch-line": {"expect", "fix", "runs", "world", "torch"},
    "launch-nodes": {"expect", "severity", "where"},
    "job-file": {"expect", "at", "file", "fix", "fails", "carriage-returns"},
    "script": {"launch"},
    "log-line": set(),
    "job-log": {"first", "message", "ranks", "where", "who", "not", "notes"},
}
"""The views, and the keys that a case of each may have."""

NOTES = ("not-run", "not-corrected")
"""What the file of a script's cause may say before its first case: why no wrong form of it is run, or why none is corrected."""

LINE_BY_LINE = {"launch-line", "log-line"}
"""Each line of the text is a case of its own."""

NUMBERS = {"gpu", "rank", "local_rank", "node_rank", "node", "line", "column"}
_HEAD = re.compile(r"=== ([a-z-]+) (fires|silent)(?:: (.+))?$")


class CaseError(ValueError):
    """A file of cases is not in the format; the message has the place and what is expected."""


@dataclass(frozen=True)
class Case:
    """One case: what is given in one view, and what is expected of one cause or, with code "", of a situation."""

    code: str
    view: str
    fires: bool
    title: str
    text: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    source: str = ""

    def __hash__(self) -> int:
        return hash((self.source, self.title))

    @property
    def id(self) -> str:
        """The name of the case in pytest's output."""
        return f"{self.code or Path(self.source.split(':')[0]).stem}-{self.title}".replace(" ", "_")[:100]

    @property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in self.keys["ranks"].replace("none", "").split()]

    @property
    def where(self) -> dict[str, Any]:
        """The expected fields of the finding's place."""
        pairs = (pair.split("=", 1) for pair in self.keys["where"].split(", ")) if "where" in self.keys else ()
        return {name: None if value == "none" else int(value) if name in NUMBERS else value for name, value in pairs}

    @property
    def codes(self) -> list[str]:
        """The codes that the case expects and nothing else, the most important one last."""
        if "expect" in self.keys:
            return [each.split()[0] for each in self.keys["expect"].split(", ")]
        return [self.code] if self.fires and self.code else []


def all_cases(view: str) -> list[Case]:
    """The cases of all causes and situations in one view."""
    return [case for path in [*_files(CASES), *_files(SITUATIONS)] for case in read(path) if case.view == view]


def notes(key: str) -> dict[str, str]:
    """The value of one key before the first case of each cause's file, by code."""
    found = {}
    for path in _files(CASES):
        head = path.read_text("utf-8").partition("=== ")[0]
        if match := re.search(rf"^{key}: (.+)$", head, re.MULTILINE):
            found[path.stem.upper()] = match[1]
    return found


def named(code: str) -> str:
    """The file of a cause's cases, as messages name it."""
    return f"fixtures/cases/{code.lower()}.txt"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))


@cache
def read(path: Path) -> tuple[Case, ...]:
    """The cases of one file.

    Raises:
        CaseError: the file is not in the format.
    """
    code = path.stem.upper() if path.parent.name == "cases" else ""
    return tuple(_cases(path.read_text("utf-8").split("\n"), code, f"{path.parent.name}/{path.name}"))


def _cases(rows: list[str], code: str, source: str) -> Iterator[Case]:
    starts = [number for number, row in enumerate(rows) if row.startswith("=== ")]
    for row in rows[: starts[0] if starts else len(rows)]:
        if row and not row.startswith("#") and row.partition(": ")[0] not in NOTES:
            raise CaseError(
                f"{source}: {row!r}: expected a comment (#), {' or '.join(NOTES)}, or `=== VIEW fires: TITLE`"
            )
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield from _one(rows[start:end], code, f"{source}:{start + 1}")


def _one(rows: list[str], code: str, place: str) -> Iterator[Case]:
    head = _HEAD.match(rows[0])
    if head is None or head[1] not in KEYS:
        raise CaseError(
            f"{place}: expected `=== VIEW fires: TITLE` or `=== VIEW silent: TITLE`, VIEW {', '.join(KEYS)}"
        )
    view, fires, title = head[1], head[2] == "fires", head[3] or ""
    blank = rows.index("") if "" in rows else len(rows)
    keys: dict[str, str] = {}
    for row in rows[1:blank]:
        key, colon, value = row.partition(": ")
        if not colon or key not in KEYS[view]:
            allowed = ", ".join(sorted(KEYS[view])) or "none"
            raise CaseError(f"{place}: {row!r}: expected KEY: VALUE (keys of {view}: {allowed}), then an empty line")
        keys[key] = f"{keys[key]}\n{value}" if key in keys else value
    text, files = _parts(rows[blank + 1 :])
    if not text and view != "machine":
        raise CaseError(f"{place}: no text: an empty line stands between the keys and the text")
    if view in LINE_BY_LINE:
        for line in text.rstrip("\n").split("\n"):
            yield Case(code, view, fires, title or line, line, keys, files, place)
    elif not title:
        raise CaseError(f"{place}: a case of {view} needs a title: `{rows[0]}: TITLE`")
    else:
        yield Case(code, view, fires, title, text, keys, files, place)


def _parts(rows: list[str]) -> tuple[str, dict[str, str]]:
    """The text, and the files that follow it, each after a line `--- NAME`."""
    marks = [number for number, row in enumerate(rows) if row.startswith("--- ")]
    texts = [
        _text(rows[start:end]) for start, end in zip([0, *(m + 1 for m in marks)], [*marks, len(rows)], strict=True)
    ]
    files = {rows[mark][4:]: text for mark, text in zip(marks, texts[1:], strict=True)}
    return texts[0] or next(iter(files.values()), ""), files


def _text(rows: list[str]) -> str:
    text = "\n".join(rows).rstrip("\n")
    return f"{text}\n" if text else ""
