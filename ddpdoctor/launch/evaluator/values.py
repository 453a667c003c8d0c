"""Values of imagined shells: a text, where it was written, and whether it differs per process or per run.

A piece that cannot be known is the one character UNKNOWN in the text. A value that differs (`$RANDOM`, `$(hostname)`) has the
text of the imagined process that is executed; `varies` says on what it depends, so that two processes can be compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    *("ARRAY", "EMPTY", "NODE", "NOT_KNOWN", "RANDOM", "TASK", "TIME"),
    *("Origin", "Value", "joined", "origins_of", "text_value"),
]

NODE = "node"
"""It differs on every node: a host name, an address, a node id."""
TASK = "task"
"""It differs in every process: a rank, a process id."""
RANDOM = "random"
"""It differs wherever and whenever it is evaluated."""
ARRAY = "array"
"""It differs in every job of an array."""
TIME = "time"
"""It differs in every run, and between processes that do not start in the same second."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a span of characters in a file. `file` is "" for text that has none."""

    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Value:
    """What a word or a variable holds."""

    text: str = ""
    origins: tuple[Origin, ...] = ()
    varies: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        """Whether no piece of it is unknown; it may still differ per process."""
        return UNKNOWN not in self.text

    @property
    def is_fixed(self) -> bool:
        """Whether it is known and the same wherever and whenever it is evaluated."""
        return self.is_known and not self.varies

    def with_text(self, text: str) -> Value:
        """Another text that was made of this value."""
        return replace(self, text=text)

    def without_knowledge(self) -> Value:
        """Something unknown that was made of this value."""
        return replace(self, text=UNKNOWN)


LONGEST_TEXT = 1 << 18
"""Characters of one value; of more, nothing is known."""
EMPTY = Value()
NOT_KNOWN = Value(UNKNOWN)


def text_value(text: str, *sources: Value) -> Value:
    """A text that was made of these values."""
    origins = tuple(dict.fromkeys(origin for value in sources for origin in value.origins))
    return Value(text, origins, frozenset().union(*(value.varies for value in sources)))


def joined(values: Iterable[Value], separator: str = "") -> Value:
    """The values one after the other."""
    parts = list(values)
    is_long = sum(len(value.text) for value in parts) > LONGEST_TEXT
    return text_value(UNKNOWN if is_long else separator.join(value.text for value in parts), *parts)


def origins_of(values: Sequence[Value], separator: str, otherwise: Origin) -> Callable[[int, int], Origin]:
    """Where the characters of the joined values were written: each piece at the first place of its value."""
    starts, at = [], 0
    for value in values:
        starts.append(at)
        at += len(value.text) + len(separator)

    def origin(start: int, end: int) -> Origin:
        number = bisect_right(starts, start) - 1
        places = values[number].origins if 0 <= number < len(values) else ()
        return places[0] if places else otherwise

    return origin
