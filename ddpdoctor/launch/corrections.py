"""Corrected launch lines: edits change the words of a line that was read; the line's text is not read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, apply, merged
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.layers import launching
from ddpdoctor.launch.line import line_of
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.shell.words import Simple, simple_commands
from ddpdoctor.light_dataclass import dataclass

__all__ = ["edited"]


def edited(line: LaunchLine, edits: Iterable[SpanEdit], version: Version, files: FileLookup = NO_FILES) -> LaunchLine:
    """The line with the edits applied: words that no edit touches are kept and moved to their new place.

    Its layers, environment and rendezvous are computed from the words, as for a new line.

    Args:
        version: the torch that reads the line.
        files: answers questions about the script of the corrected line.

    Raises:
        ValueError: two edits overlap.
    """
    edits = merged(edits)
    commands = _commands(line.argv, line.source, edits, line.known)
    words = launching(commands) or (commands[-1].words if commands else ())
    own = {variable.name for layer in line.layers for variable in layer.variables}
    environ = {name: value for name, value in line.environ.variables.items() if name not in own}
    found = line_of(
        apply(line.source, edits),
        words,
        environ,
        version,
        line.cwd,
        file=line.file,
        first_line=line.first_line,
        first_column=line.first_column,
        batch=line.batch,
        known=line.known,
        files=files,
    )
    is_new = line.file is not None and line.script is None and found.script is not None and not found.script.exists
    return replace(
        found,
        node=line.node,
        script=None if is_new else found.script,
        is_background=line.is_background,
        pod=line.pod,
        known=line.known,
        before=line.before,
    )


@dataclass(slots=True)
class _Region:
    """Words `first` to before `last` and the edits that touch them, in the span `start` to `end` of the source."""

    first: int
    last: int
    start: int
    end: int
    edits: list[SpanEdit]


def _commands(words: Sequence[Word], source: str, edits: Sequence[SpanEdit], known: Mapping[str, str]) -> list[Simple]:
    """The simple commands that the words are after the edits; an edit may put an operator between them."""
    found: list[list[Word]] = [[]]
    at = shift = 0
    for region in _regions(words, edits):
        found[-1] += (_moved(word, shift) for word in words[at : region.first])
        text = apply(
            source[region.start : region.end],
            [SpanEdit(e.start - region.start, e.end - region.start, e.text) for e in region.edits],
        )
        first, *others = _read(text, region.start + shift, known, is_first=not found[-1])
        found[-1] += first
        found += others
        at, shift = region.last, shift + len(text) - (region.end - region.start)
    found[-1] += (_moved(word, shift) for word in words[at:])
    return [Simple(tuple(each)) for each in found if each]


def _regions(words: Sequence[Word], edits: Sequence[SpanEdit]) -> list[_Region]:
    """The edits with the words that each overlaps or touches; edits of one word share a region."""
    found: list[_Region] = []
    for edit in edits:
        touched = [i for i, word in enumerate(words) if word.start <= edit.end and edit.start <= word.end]
        if touched:
            first, last = touched[0], touched[-1] + 1
        else:
            first = last = next((i for i, word in enumerate(words) if word.start > edit.end), len(words))
        start = min(edit.start, words[first].start if touched else edit.start)
        end = max(edit.end, words[last - 1].end if touched else edit.end)
        before = found[-1] if found else None
        if before is not None and (first < before.last or start < before.end):
            before.last, before.end = max(last, before.last), max(end, before.end)
            before.edits.append(edit)
        else:
            found.append(_Region(first, last, start, end, [edit]))
    return found


def _read(text: str, start: int, known: Mapping[str, str], *, is_first: bool) -> list[list[Word]]:
    """The words of a changed span, command by command; in the middle of a command no word is a keyword of the shell."""
    prefix = "" if is_first else ": "
    commands = [list(command.words) for command in simple_commands(prefix + text, known)] or [[]]
    if prefix:
        commands[0] = commands[0][1:]
    return [[_moved(word, start - len(prefix)) for word in command] for command in commands]


def _moved(word: Word, shift: int) -> Word:
    return replace(word, start=word.start + shift, end=word.end + shift) if shift else word
