"""What a report is about: the inputs that were read, the jobs that they show, the sections of a preflight, source lines.

Types only, standard library only, like `findings.py`, which holds the report itself.
"""

from __future__ import annotations

from enum import Enum

from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "CheckedSection",
    "ExaminedInput",
    "ExaminedJob",
    "Excerpt",
    "RunDifference",
    "SectionState",
    "Verdict",
]


class Verdict(str, Enum):
    """The verdict of a report in one word."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    INCOMPLETE = "incomplete"


class SectionState(str, Enum):
    """The state of one section of a preflight. `ok` is only for what was examined."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ExaminedInput:
    """One input of a report: a file, a launch line, standard input.

    `kind` is a word of the contract ("log", "dump", "script", "launch line", "unknown", …). `is_understood` is False for
    empty or unreadable inputs and those of an unknown kind, and `reason` says why. `is_named` separates inputs that the user
    named from files found in folders. `job` is the name of its job. `lines` is None if it has no lines. `left_out` says what of
    an understood input was not examined: `FILE:LINE: reason`.
    """

    path: str
    kind: str
    is_understood: bool = True
    lines: int | None = None
    ranks: tuple[int, ...] = ()
    job: str | None = None
    reason: str | None = None
    is_named: bool = True
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExaminedJob:
    """One job that the inputs show. `outcome` is "failed", "completed", "interrupted", "running" or "unknown".

    `first` and `last` are the times of its first and last line as the log writes them; `exit_code` is the job's own. `open_end`
    says what the log shows instead of a good end, and what to collect next; empty where the end is known or explained.
    """

    name: str
    outcome: str
    verdict: Verdict
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    first: str | None = None
    last: str | None = None
    exit_code: int | None = None
    open_end: str = ""


@dataclass(frozen=True, slots=True)
class CheckedSection:
    """One section of a preflight: its area, its title, its state, and what was seen or why nothing could be.

    `code` is that of its worst finding, "" without one.
    """

    area: str
    title: str
    state: SectionState
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class RunDifference:
    """Something that only the failed run has, in comparison with runs that completed.

    `kind` is "setting", "version", "transport", "host" or "line"; `name` that of the setting, or the line itself. `failed` and
    `good` are what the failed run and the others show; `place` is `file:line` in the failed run, "" if it shows nothing.
    """

    kind: str
    name: str
    failed: str
    good: str
    place: str = ""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The source lines around the place of a finding, for a caret: `lines` begin with line `first` of the source.

    The caret stands at `line`, `column` (both count from 1) and is `length` characters long; with a length of 0 there is
    none. `is_numbered` is False for a launch line, which has no line numbers.
    """

    first: int
    lines: tuple[str, ...]
    line: int
    column: int
    length: int
    is_numbered: bool = True
