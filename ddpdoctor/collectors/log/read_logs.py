"""`log`: reads the output of ranks, launchers and schedulers, compressed or not, of any size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import IO

from ddpdoctor.collectors.log import error_file
from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.collectors.log.inputs import UNREADABLE, Input, TolerantReader, inputs_of, opened, reason_of
from ddpdoctor.collectors.log.parallel_read import SPAN_BYTES, on_all_cores, spans
from ddpdoctor.collectors.log.scanner import ScannedPart, Scanner, joined
from ddpdoctor.collectors.log.windows import AHEAD_BYTES, BEHIND_BYTES, Readable
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.log import InputKind, JobMark, Log, LogSource
from ddpdoctor.logs.attribution import attributed
from ddpdoctor.logs.context_patterns import CONTEXT_PATTERNS
from ddpdoctor.logs.line_prefix import who_of_name
from ddpdoctor.logs.log_input import settled

__all__ = ["READERS", "collect", "read"]

LINE_END = re.compile(rb"[\r\n]")

Reader = Callable[[Readable, Scanner], ScannedPart]


def _text(file: Readable, scanner: Scanner) -> ScannedPart:
    return scanner.scan(file)


def _nothing(file: Readable, scanner: Scanner) -> ScannedPart:
    return ScannedPart()


READERS: dict[InputKind, Reader] = {
    InputKind.TEXT: _text,
    InputKind.KERNEL: _text,
    InputKind.STACKS: _text,
    InputKind.ERROR_FILE: error_file.read,
    InputKind.BINARY: _nothing,
    InputKind.DUMP: _nothing,
    InputKind.EMPTY: _nothing,
    InputKind.FACTS: _nothing,
    InputKind.RAS: _text,
    InputKind.REPORT: _nothing,
    InputKind.SCRIPT: _nothing,
    InputKind.SHELL: _nothing,
    InputKind.NOTEBOOK: _nothing,
    InputKind.IMAGE: _nothing,
    InputKind.ARCHIVE: _nothing,
    InputKind.CHECKPOINT: _nothing,
}
"""The reader of each kind of input, which gets the decompressed bytes from the beginning. Other kinds are read as text."""


def collect(paths: Iterable[str], signatures: Sequence[str], stdin: IO[bytes] | None = None) -> Log:
    """The relevant lines in these files, folders and standard input (`-`), as the log of one job.

    Unreadable input is a `problem` of its source, and a gap if a part of it was read.
    """
    return attributed(read(paths, signatures, stdin))


def read(
    paths: Iterable[str], signatures: Sequence[str], stdin: IO[bytes] | None = None, deadline: float = math.inf
) -> Log:
    """The lines that a signature or a mark matches, of all jobs, not yet attributed to processes.

    Input that was not read by the `deadline` (`time.monotonic`) is a `problem` of its source.
    """
    scanner = Scanner((*signatures, *CONTEXT_PATTERNS.values()))
    inputs = inputs_of(paths)
    tasks = [(source, start, size) for source in inputs for start, size in _spans(source)]
    above = len(_above([source.name for source in inputs]))
    size_bytes = sum(source.size_bytes for source in inputs)
    read = on_all_cores(lambda task: _read(*task, above, scanner, stdin, deadline), tasks, size_bytes, _unread)
    spans_of: dict[str, list[tuple[LogSource, ScannedPart]]] = {}
    for (each, _, _), span in zip(tasks, read, strict=True):
        spans_of.setdefault(each.name, []).append(span)
    return settled(_log_of([_whole(spans) for spans in spans_of.values()]))


def _whole(spans: list[tuple[LogSource, ScannedPart]]) -> tuple[LogSource, ScannedPart]:
    """One source, and its spans joined."""
    source, part = spans[0][0], joined([part for _, part in spans])
    problem = next((span.problem for span, _ in spans if span.problem is not None), None)
    return replace(source, lines=part.newlines, problem=problem or part.problem), part


def _log_of(read: Sequence[tuple[LogSource, ScannedPart]]) -> Log:
    """The log of these sources, each line with the index of its source."""
    sources = [source for source, _ in read]
    parts = [part for _, part in read]
    tracebacks = [replace(traceback, source=i) for i, part in enumerate(parts) for traceback in part.tracebacks]
    return Log(
        sources=tuple(sources),
        lines=tuple(replace(line, source=i) for i, part in enumerate(parts) for line in part.lines),
        tracebacks=tuple(traceback for traceback in tracebacks if traceback.exception),
        unfinished=tuple(traceback for traceback in tracebacks if not traceback.exception),
        exits=tuple(replace(each, source=i) for i, part in enumerate(parts) for each in part.exits),
        xids=tuple(replace(xid, source=i) for i, part in enumerate(parts) for xid in part.xids),
        heads=tuple(replace(line, source=i) for i, part in enumerate(parts) for line in part.head),
        tails=tuple(replace(line, source=i) for i, part in enumerate(parts) for line in part.tail),
        marks=tuple(_mark_of(i, mark) for i, part in enumerate(parts) for mark in part.marks),
        gaps=tuple(Gap(f"log.{s.name}", f"{s.name}: {s.problem}") for s in sources if _is_gap(s)),
    )


def _is_gap(source: LogSource) -> bool:
    """Whether only a part was read; an input that was not read at all counts as not understood."""
    return source.problem is not None and source.lines > 0


def _mark_of(source: int, mark: JobMark) -> JobMark:
    return replace(mark, source=source, tail=tuple(replace(line, source=source) for line in mark.tail))


def _above(names: Sequence[str]) -> str:
    """The common parent folder of all inputs, which does not tell which rank wrote a log."""
    folders = [name.split("/")[:-1] for name in names]
    shared = next((i for i, parts in enumerate(zip(*folders, strict=False)) if len({*parts}) > 1), None)
    return (
        "".join(part + "/" for part in folders[0][: min(map(len, folders)) if shared is None else shared])
        if folders
        else ""
    )


def _spans(each: Input) -> list[tuple[int, int | None]]:
    if each.path is None or each.packing or each.problem is not None or each.size_bytes < 2 * SPAN_BYTES:
        return [(0, None)]
    return spans(each.size_bytes)


def _read(
    each: Input,
    start: int,
    span_bytes: int | None,
    above: int,
    scanner: Scanner,
    stdin: IO[bytes] | None,
    deadline: float,
) -> tuple[LogSource, ScannedPart]:
    who, attempt = who_of_name(each.name, above)
    source = LogSource(each.name, InputKind.TEXT, each.size_bytes, who=who, attempt=attempt, problem=each.problem)
    if each.problem is not None:
        is_special = each.special is not None and not each.is_named
        return replace(source, kind=InputKind.SPECIAL if is_special else source.kind), ScannedPart()
    try:
        with opened(each, stdin, deadline) as file:
            reader = TolerantReader(file, deadline)
            kind = kind_of(reader.head, each.name)
            if start or span_bytes is not None:
                part = _span(reader, kind, start, span_bytes, scanner)
            else:
                part = READERS.get(kind, _text)(reader, scanner)
    except UNREADABLE as error:
        return replace(source, problem=reason_of(error)), ScannedPart()
    part.problem = part.problem or reader.problem
    return replace(source, kind=kind), part


def _unread(task: tuple[Input, int, int | None], why: str) -> tuple[LogSource, ScannedPart]:
    """The result for a part of an input that was not read."""
    each = task[0]
    return LogSource(each.name, InputKind.TEXT, each.size_bytes, problem=why), ScannedPart()


def _span(file: TolerantReader, kind: InputKind, start: int, span_bytes: int | None, scanner: Scanner) -> ScannedPart:
    """The lines that begin in one span of a large file. A file that is not plain text is read completely with its first span."""
    reader = READERS.get(kind, _text)
    if reader is not _text or file.is_recoded:
        return reader(file, scanner) if start == 0 else ScannedPart()
    begin = _next_line(file, start)
    most = None if span_bytes is None else _next_line(file, start + span_bytes) - begin
    behind = min(begin, BEHIND_BYTES)
    file.seek(begin - behind)
    return scanner.scan(file, behind, most)


def _next_line(file: TolerantReader, place: int) -> int:
    """The start of the first line at or after `place`; a very long line is cut there."""
    if place == 0:
        return 0
    file.seek(place - 1)
    ended = LINE_END.search(file.read(AHEAD_BYTES))
    return place if ended is None else place - 1 + ended.end()
