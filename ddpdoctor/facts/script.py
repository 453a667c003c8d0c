"""`script`: the text of training scripts, and of the modules beside them."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["IdleComment", "Script", "SourceFile", "SourceProblem"]


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why a text cannot be read as Python: a message, and where (line and column from 1, None: the whole file).

    `is_unread`: it may be Python, but was not looked at.
    """

    message: str
    line: int | None = None
    column: int | None = None
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python text. `path` is what findings name; `text` is "" when it could not be read, and `problem` says why.

    Of a notebook, `text` is its code cells one under the other; what is not Python in them (`%cd`, `!pip`) is blank. So is
    a cell that cannot be read, and `problem` describes the first such cell.
    """

    path: str
    text: str = ""
    problem: SourceProblem | None = None

    @property
    def can_be_judged(self) -> bool:
        """Whether there is a text to judge, of all or of the rest."""
        return self.problem is None or bool(self.text)


@dataclass(frozen=True, slots=True)
class IdleComment:
    """A comment that was to silence findings and silenced none; `code` is "" when it named no code."""

    path: str
    line: int
    column: int
    code: str


@dataclass(frozen=True, slots=True)
class Script(Section):
    """`files` are judged; `beside` are modules that they import from the same project, read for what their functions do.

    `idle` is known only after all other rules have judged the files.
    """

    files: tuple[SourceFile, ...] = ()
    beside: tuple[SourceFile, ...] = ()
    idle: tuple[IdleComment, ...] = ()
    gaps: tuple[Gap, ...] = ()
