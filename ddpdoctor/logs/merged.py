"""Several logs as one: what was read now, and what collected facts hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.facts.log import Log

__all__ = ["merged"]


def merged(first: Log, others: Iterable[Log]) -> Log:
    """`first` with the sources, lines, tracebacks and exits of the others after its own."""
    for other in others:
        by = len(first.sources)
        first = replace(
            first,
            sources=(*first.sources, *other.sources),
            lines=(*first.lines, *(replace(each, source=each.source + by) for each in other.lines)),
            tracebacks=(*first.tracebacks, *(replace(each, source=each.source + by) for each in other.tracebacks)),
            unfinished=(*first.unfinished, *(replace(each, source=each.source + by) for each in other.unfinished)),
            exits=(*first.exits, *(replace(each, source=each.source + by) for each in other.exits)),
        )
    return first
