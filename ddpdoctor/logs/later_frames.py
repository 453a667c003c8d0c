"""Frames of a traceback that are elsewhere in the text: after its exception, or in the one raised while it was handled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.facts.log import LogLine, Traceback, TracebackFrame, Who
from ddpdoctor.logs.distances import CHAIN_LINES

__all__ = ["is_ahead", "with_frames"]

"""An empty line, "During handling of the above exception, another exception occurred:", and an empty line."""


def with_frames(tracebacks: tuple[Traceback, ...], unfinished: tuple[Traceback, ...]) -> tuple[Traceback, ...]:
    """The tracebacks; one that has no frame of the job's own gets those that the text holds elsewhere."""
    found = (_from_behind(_from_handler(each, (*tracebacks, *unfinished)), unfinished) for each in tracebacks)
    return tuple(_gathered(found))


def is_ahead(spoken: LogLine | Traceback, unfinished: Traceback) -> bool:
    """Whether a traceback without an exception begins on the line after this one, and so may be the exception's."""
    return (spoken.source, spoken.number + 1) == (unfinished.source, unfinished.begin)


def _from_behind(each: Traceback, unfinished: tuple[Traceback, ...]) -> Traceback:
    found = next((other for other in unfinished if is_ahead(each, other)), None) if each.is_line else None
    if found is None or (each.who != Who() and each.who != found.who):
        return each
    return replace(each, frames=found.frames, who=found.who, has_joined=each.has_joined or found.has_joined)


def _from_handler(each: Traceback, tracebacks: tuple[Traceback, ...]) -> Traceback:
    """Where a traceback has frames of libraries alone, their callers are in the one raised while it was handled."""
    if not each.frames or each.own_frames:
        return each
    for other in tracebacks:
        is_next = (other.source, other.who) == (
            each.source,
            each.who,
        ) and 0 < other.begin - each.number <= CHAIN_LINES
        is_alike = other.frames[-1:] == each.frames[-1:]  # another rank's, of which the text holds the beginning
        if is_next and other.own_frames and (other.is_chained or is_alike):
            return replace(each, frames=(*other.own_frames, *each.frames))
    return each


def _gathered(tracebacks: Iterable[Traceback]) -> Iterator[Traceback]:
    """torch.distributed.checkpoint prints the caller once, above the tracebacks that it gathered from the ranks."""
    caller: tuple[TracebackFrame, ...] = ()
    last: Traceback | None = None
    for each in tracebacks:
        if each.exception.endswith("CheckpointException"):
            caller, last = each.own_frames, each
        elif last is not None and each.source == last.source and 0 < each.begin - last.number <= CHAIN_LINES:
            last = each
            if each.frames and not each.own_frames:
                each = replace(each, frames=(*caller, *each.frames))
        yield each
