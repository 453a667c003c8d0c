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
from ddpdoctor.findings import Evidence, Finding, LineEdit, NodeCommand, Severity, Where

__all__ = [
    "after",
    "agents",
    "base_name",
    "before",
    "correcting",
    "every_node",
    "instead",
    "option_text",
    "point",
    "remove",
    "replace_word",
    "revalue",
    "shown",
    "spelled",
    "where",
]

HOST0 = "HOST0"
"""In a corrected line: the address of the node with rank 0, which only the user knows."""


def agents(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, Plan]]:
    """Every torchrun whose words can be read, with its settings."""
    for line in launch.lines:
        agent, plan = line.agent, line.plan
        if agent is not None and plan is not None and not agent.is_garbled and not agent.reading.is_help:
            yield line, agent, plan


def shown(word: Word) -> str:
    """The word as the user wrote it, cut to a readable length."""
    text = word.raw if word.raw and word.is_literal else plain(word.text)
    return text if len(text) <= 60 else text[:59] + "…"


def instead(kind: str | None) -> tuple[str, str]:
    """The state of a path without a file, as the end of a sentence and as a label; `kind` is what is there, if anything."""
    return ("does not exist", "no such file") if kind is None else (f"is {kind}, not a file", kind)


def base_name(path: str) -> str:
    """The name of a file without its folders, cut to a readable length."""
    name = path.rpartition("/")[2] or path
    return name if len(name) <= 30 else name[:29] + "…"


def option_text(given: Given) -> str:
    """An option and its value as the user wrote them: `--nnodes 2` or `--nnodes=2`."""
    if given.is_joined or given.value is None:
        return shown(given.word)
    return f"{shown(given.word)} {shown(given.value_word)}"


def every_node(launch: Launch, line: LaunchLine) -> str:
    """`all nodes` if the corrected line is run by hand on each of them; "" if a scheduler starts it or it has a node rank."""
    is_started = line.task_starter is not None or line.batch is not None or line.pod is not None
    has_rank = line.agent is not None and line.agent.given("node_rank") is not None
    return "" if is_started or has_rank or len(launch.nodes) > 1 else "all nodes"


def where(line: LaunchLine, word: Word | None) -> Where:
    """The place of a word: file, line and column, or the node and the column in its line."""
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
    label: str,
    severity: Severity | None = None,
    fix: str = "",
    on: str = "",
) -> Finding:
    """A finding at a word of a line, with the corrected line if there is one.

    Args:
        word: what the finding points at; None for the line as a whole.
        message: the headline.
        expected: what should be there.
        edits: what corrects the line; None if no corrected line can be given.
        label: what the caret says, in at most six words.
        on: the nodes on which the corrected line is to be run, "" for the node of the line.
    """
    target = word if word is not None else (line.argv[0] if line.argv else None)
    text = shown(target) if target is not None else line.source
    finding = Finding(
        message,
        (Evidence(_path(launch, line, target), text, expected),),
        fix=fix,
        where=where(line, word if word is not None else target),
        severity=severity,
        label=label,
    )
    if edits is None:
        return finding
    finding = correcting(finding, launch, (line, edits))
    if not on or finding.fix_command is None:
        return finding
    return dataclasses.replace(finding, fix_commands=(NodeCommand(on, finding.fix_command),))


def _path(launch: Launch, line: LaunchLine, word: Word | None) -> str:
    at = 0
    if word is not None:
        at = next((i for i, arg in enumerate(line.argv) if arg.start <= word.start < max(arg.end, arg.start + 1)), 0)
    if len(launch.lines) == 1:
        return f"launch.argv[{at}]"
    return f"launch.lines[{_index(launch, line)}].argv[{at}]"


def _index(launch: Launch, line: LaunchLine) -> int:
    return next((i for i, other in enumerate(launch.lines) if other is line), 0)


def correcting(finding: Finding, launch: Launch, *corrections: tuple[LaunchLine, Iterable[SpanEdit]]) -> Finding:
    """The finding with the edits of its lines; without a command if edits overlap or would change a variable."""
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
    """The edit would replace a variable that expands to several words, or add words after one that also holds the
    script.
    """
    words = (*line.argv, *(word for layer in line.layers for word in layer.own))
    script = None if line.agent is None else line.agent.reading.script
    follows_script = script is not None and not script.is_literal and edit.start == edit.end == script.end
    return follows_script or any(not w.is_literal and edit.start < w.end and w.start < edit.end for w in words)


def replace_word(word: Word, *texts: str) -> SpanEdit:
    """Replace a word by others; a value that does not change keeps its quotes."""
    name, sign, value = texts[0].partition("=") if len(texts) == 1 else ("", "", "")
    if sign and "=" in word.raw and value == word.text.partition("=")[2]:
        return SpanEdit(word.start, word.end, escape(f"{name}=", word.context) + word.raw.partition("=")[2])
    return SpanEdit(word.start, word.end, escape(" ".join(quote(t) for t in texts), word.context))


def revalue(given: Given, value: str) -> SpanEdit:
    """Give an option another value, as shell text, joined or separate as it was written."""
    word = given.value_word
    prefix = word.text[: len(word.text) - len(given.value or "")] if given.is_joined else ""
    return SpanEdit(word.start, word.end, escape(prefix + value, word.context))


def remove(line: LaunchLine, *words: Word) -> Iterator[SpanEdit]:
    """Delete words, with the blank before each (after it, for the first word of the line)."""
    for word in words:
        start, end = word.start, word.end
        gap = re.match(r"(?:[ \t]|\n\\)+", line.source[:start][::-1])
        if gap:
            start -= gap.end()
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
    """An option as the line spells it: with dashes, or with underscores if its options have them or torch is older than
    2.0.
    """
    long = [g.written for g in layer.reading.given if g.written.startswith("--")]
    underscores = version < (2, 0) or any("_" in w for w in long)
    return "--" + (name if underscores else name.replace("_", "-"))
