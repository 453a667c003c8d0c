"""A launcher of tasks as it was started, the tasks that it starts, and how its words are read."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN, Word, quote
from ddpdoctor.launch.evaluator.cluster import number_of
from ddpdoctor.launch.evaluator.imagined_run import Withheld
from ddpdoctor.launch.evaluator.values import TASK, Origin, Value
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "LaunchedTask",
    "StartedLauncher",
    "TaskLayout",
    "as_words",
    "full_path",
    "number_in",
    "of_task",
    "placed",
    "plain_options",
]


@dataclass(frozen=True, slots=True)
class StartedLauncher:
    """A launcher of tasks: its values, the words and the layer that they make, the command behind it, its environment."""

    argv: Sequence[Value]
    words: Sequence[Word]
    layer: Layer
    inner: Sequence[Value]
    environ: Mapping[str, Value]
    folder: str | None = None

    def places(self) -> dict[str, Origin]:
        """Where each option of the launcher is written."""
        at = {word.start: value.origins[0] for word, value in zip(self.words, self.argv, strict=True) if value.origins}
        found = {given.flag: at[given.word.start] for given in self.layer.reading.given if given.word.start in at}
        plain = {word.text.partition("=")[0]: at[word.start] for word in self.layer.own[1:] if word.start in at}
        return {**{name: origin for name, origin in plain.items() if name.startswith("-")}, **found}

    def value_of(self, written: Word, text: str) -> Value:
        """A text of this word, with its place."""
        pairs = zip(self.words, self.argv, strict=True)
        return next((each.with_text(text) for word, each in pairs if word.start == written.start), Value(text))

    def value(self, text: str) -> Value:
        """A text of one of its words, with the place of the word."""
        return next((each.with_text(text) for each in self.argv if text and text in each.text), Value(text))


@dataclass(frozen=True, slots=True)
class LaunchedTask:
    """One task that a launcher starts: its host, its numbers, the GPUs that it sees, its own variables."""

    host: str
    node: int
    number: int
    local: int
    gpus: int | None
    environ: Mapping[str, Value]


TaskLayout = tuple[list[LaunchedTask], dict[str, Value], dict[str, Withheld]]
"""The tasks, the environment that all get, and what other hosts do not get of it."""


def plain_options(words: Sequence[Word]) -> dict[str, str]:
    """Options with their values, of a launcher whose options have no table: `-n 2`, `-n2`, `--nrs=2`, `--nrs 2`."""
    found: dict[str, str] = {}
    for word, after in itertools.zip_longest(words[1:], words[2:]):
        name, sign, value = word.text.partition("=")
        follows = "" if after is None else after.text
        if name.startswith("--"):
            found.setdefault(name, value if sign else follows)
        elif re.fullmatch(r"-[A-Za-z]\d+", word.text):
            found.setdefault(word.text[:2], word.text[2:])
        elif re.fullmatch(r"-[A-Za-z]", word.text):
            found.setdefault(word.text, follows)
    return found


def number_in(options: Mapping[str, str], *flags: str) -> int | None:
    return next((number for flag in flags if (number := number_of(options.get(flag))) is not None), None)


def as_words(argv: Sequence[Value]) -> tuple[Word, ...]:
    """The values as words of a line in which spaces separate them."""
    found = []
    at = 0
    for value in argv:
        raw = quote(value.text.replace(UNKNOWN, "…")) if value.text else "''"
        found.append(Word(value.text, raw, at, at + len(raw)))
        at += len(raw) + 1
    return tuple(found)


def full_path(path: str, folder: str | None) -> str:
    return path if path.startswith("/") or folder is None else posixpath.normpath(posixpath.join(folder, path))


def placed(task: int, tasks: int, nodes: int) -> tuple[int, int]:
    """Node and local number of a task in block order: the first nodes get one more where the numbers do not divide."""
    size, more = divmod(tasks, nodes)
    border = more * (size + 1)
    if task < border:
        return divmod(task, size + 1)
    node, local = divmod(task - border, max(size, 1))
    return more + node, local


def of_task(number: int) -> Value:
    return Value(str(number), varies=frozenset((TASK,)))
