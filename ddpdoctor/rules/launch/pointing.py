"""Findings that point at a word of a launch line, and the corrected line that goes with them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, apply, escape, plain, quote, tidy
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Evidence, Finding, LineEdit, Severity, Where

__all__ = [
    "after",
    "agents",
    "before",
    "correcting",
    "point",
    "remove",
    "replace_word",
    "revalue",
    "shown",
    "spelled",
    "where",
]

HOST0 = "HOST0"
"""Stands in a corrected line for the address of the node with rank 0, which only the user knows."""


def agents(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, Plan]]:
    """Every torchrun whose words can be read, with what it will do."""
    for line in launch.lines:
        agent, plan = line.agent, line.plan
        if agent is not None and plan is not None and not agent.is_garbled and not agent.reading.is_help:
            yield line, agent, plan


def shown(word: Word) -> str:
    """The word as the user wrote it, cut to a readable length."""
    text = word.raw if word.raw and word.is_literal else plain(word.text)
    return text if len(text) <= 60 else text[:59] + "…"


def where(line: LaunchLine, word: Word | None) -> Where:
    """The place of a word: file, line and column, or the column in the line of a node."""
    row, column = line.place(word.start if word is not None else 0)
    return Where(file=line.file, line=row, column=column, node=line.node)


def point(
    launch: Launch,
    line: LaunchLine,
    word: Word | None,
    message: str,
    expected: str,
    edits: Iterable[SpanEdit] | None = None,
    *,
    severity: Severity | None = None,
    fix: str = "",
) -> Finding:
    """A finding at `word` (None: the line as a whole), with the line that `edits` give; None: no line can be given."""
    target = word if word is not None else (line.argv[0] if line.argv else None)
    seen = shown(target) if target is not None else line.source
    finding = Finding(
        message,
        (Evidence(_path(launch, line, target), seen, expected),),
        fix=fix,
        where=where(line, word if word is not None else target),
        severity=severity,
    )
    return finding if edits is None else correcting(finding, launch, (line, edits))


def _path(launch: Launch, line: LaunchLine, word: Word | None) -> str:
    at = 0
    if word is not None:
        at = next(
            (i for i, each in enumerate(line.argv) if each.start <= word.start < max(each.end, each.start + 1)), 0
        )
    if len(launch.lines) == 1:
        return f"launch.argv[{at}]"
    return f"launch.lines[{_index(launch, line)}].argv[{at}]"


def _index(launch: Launch, line: LaunchLine) -> int:
    return next((i for i, each in enumerate(launch.lines) if each is line), 0)


def correcting(finding: Finding, launch: Launch, *corrections: tuple[LaunchLine, Iterable[SpanEdit]]) -> Finding:
    """The finding with edits of its lines; without a command where those of a line get in each other's or a variable's way."""
    edits: list[LineEdit] = []
    commands = []
    for line, wanted in corrections:
        own = tuple(dict.fromkeys(wanted))
        if not own or any(_is_expanded(line, edit) for edit in own):
            return dataclasses.replace(finding, fix_command=None)
        try:
            commands.append(tidy(apply(line.source, own)))
        except ValueError:
            return dataclasses.replace(finding, fix_command=None)
        index = _index(launch, line)
        edits += (LineEdit(index, edit.start, edit.end, edit.text) for edit in own)
    return dataclasses.replace(finding, fix_command="\n".join(commands), line_edits=tuple(edits))


def _is_expanded(line: LaunchLine, edit: SpanEdit) -> bool:
    """The edit would replace a variable that gave several words, or put words behind one that holds the script too."""
    words = (*line.argv, *(word for layer in line.layers for word in layer.own))
    script = None if line.agent is None else line.agent.reading.script
    is_behind = script is not None and not script.is_literal and edit.start == edit.end == script.end
    return is_behind or any(not w.is_literal and edit.start < w.end and w.start < edit.end for w in words)


def replace_word(word: Word, *texts: str) -> SpanEdit:
    """Put other words in a word's place; a value that stays keeps its spelling."""
    name, sign, value = texts[0].partition("=") if len(texts) == 1 else ("", "", "")
    if sign and "=" in word.raw and value == word.text.partition("=")[2]:
        return SpanEdit(word.start, word.end, escape(f"{name}=", word.context) + word.raw.partition("=")[2])
    return SpanEdit(word.start, word.end, escape(" ".join(quote(t) for t in texts), word.context))


def revalue(given: Given, value: str) -> SpanEdit:
    """Give an option another value, as shell text, in the form that it was written in."""
    word = given.value_word
    prefix = word.text[: len(word.text) - len(given.value or "")] if given.is_joined else ""
    return SpanEdit(word.start, word.end, escape(prefix + value, word.context))


def remove(line: LaunchLine, *words: Word) -> Iterator[SpanEdit]:
    """Take words out, with the blank before each (after it, for the first word of the line)."""
    for word in words:
        start, end = word.start, word.end
        gap = re.search(r"(?:[ \t]|\\\n)+$", line.source[:start])
        if gap:
            start = gap.start()
        else:
            follow = re.match(r"(?:[ \t]|\\\n)+", line.source[end:])
            end += follow.end() if follow else 0
        yield SpanEdit(start, end, "")


def before(word: Word, text: str) -> SpanEdit:
    """Insert shell text and a blank before a word."""
    return SpanEdit(word.start, word.start, escape(text, word.context) + " ")


def after(word: Word, text: str) -> SpanEdit:
    """Insert a blank and shell text after a word."""
    return SpanEdit(word.end, word.end, " " + escape(text, word.context))


def spelled(layer: Layer, name: str, version: Version) -> str:
    """An option in the spelling that the line uses: dashes, unless its options have underscores or torch is before 2.0."""
    long = [g.written for g in layer.reading.given if g.written.startswith("--")]
    underscores = version < (2, 0) or any("_" in w for w in long)
    return "--" + (name if underscores else name.replace("_", "-"))
