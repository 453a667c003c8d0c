"""What a shell or batch file shows as a text, besides what it starts."""

from __future__ import annotations

from ddpdoctor.light_dataclass import dataclass

__all__ = ["MissingVariable", "ShellCommand", "ShellText", "TextSpan"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The characters `start` to before `end` of the file."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that the file's own shell runs: a program, a builtin, or a function.

    `words` are its words (pieces that cannot be known are UNKNOWN), `span` is where it stands. `is_certain` is False in a
    branch that may not be taken.
    """

    words: tuple[str, ...]
    span: TextSpan
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class MissingVariable:
    """A variable that the file sets and that the shell that uses it does not get.

    `used` is where that shell's text uses it, `assigned` where the file sets it (None: not found). `remote` is the program
    that passes no variables at all ("" for a shell on the same host).
    """

    name: str
    used: TextSpan
    assigned: TextSpan | None = None
    remote: str = ""


@dataclass(frozen=True, slots=True)
class ShellText:
    """The text of a shell or batch file.

    `commands` are those of its own shell in the order in which they run. `missing` are variables that are empty where they
    are used. `late_options` are `#SBATCH` lines after the first command, which sbatch ignores. `is_batch`: it has `#SBATCH`
    lines. `is_complete`: everything in it was executed.
    """

    text: str
    commands: tuple[ShellCommand, ...] = ()
    missing: tuple[MissingVariable, ...] = ()
    late_options: tuple[TextSpan, ...] = ()
    is_batch: bool = False
    is_complete: bool = True
