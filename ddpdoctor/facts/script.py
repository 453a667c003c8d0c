"""`script`: the text of training scripts, and of the modules that they import from the same project."""

from __future__ import annotations

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.light_dataclass import dataclass

__all__ = ["IdleComment", "Script", "SourceFile", "SourceProblem"]


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why a text cannot be parsed as Python: a message, and the position (line and column from 1, None: the whole file).

    `is_unread`: it may be Python, but was not read.
    """

    message: str
    line: int | None = None
    column: int | None = None
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python text. `path` is what findings name; `text` is "" when it could not be read, and `problem` is the reason.

    For a notebook, `text` is its code cells concatenated; lines that are not Python (`%cd`, `!pip`) are blanked. So is
    a cell that cannot be parsed, and `problem` describes the first such cell.
    """

    path: str
    text: str = ""
    problem: SourceProblem | None = None

    @property
    def can_be_judged(self) -> bool:
        """Whether there is text to judge: the whole file, or the cells that could be parsed."""
        return self.problem is None or bool(self.text)


@dataclass(frozen=True, slots=True)
class IdleComment:
    """A suppression comment that suppressed no finding; `code` is "" when it names no code."""

    path: str
    line: int
    column: int
    code: str


@dataclass(frozen=True, slots=True)
class Script(Section):
    """`files` are judged; `beside` are modules that they import from the same project, read to know their functions.

    `idle` is known only after all other rules have run.
    """

    files: tuple[SourceFile, ...] = ()
    beside: tuple[SourceFile, ...] = ()
    idle: tuple[IdleComment, ...] = ()
    gaps: tuple[Gap, ...] = ()
