"""What a launcher's argument parser makes of its words."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.launch.words import Word
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Given", "ParseProblem", "ParseProblemKind", "Reading"]


class ParseProblemKind(str, Enum):
    """Why the parser stops: one value for each of argparse's error messages."""

    UNRECOGNIZED = "unrecognized arguments"
    AMBIGUOUS = "ambiguous option"
    EXPECTED_VALUE = "expected one argument"
    IGNORED_VALUE = "ignored explicit argument"
    INVALID_VALUE = "invalid value"
    INVALID_CHOICE = "invalid choice"
    NO_SCRIPT = "the following arguments are required"


@dataclass(frozen=True, slots=True)
class Given:
    """One option on the line. `flag` is the spelling that the parser matched, `written` the spelling on the line.

    `value` is None for a flag. `word` contains the option, `value_word` the value; they are the same for
    `--option=value`.
    """

    dest: str
    flag: str
    written: str
    value: str | None
    word: Word
    value_word: Word

    @property
    def is_abbreviated(self) -> bool:
        """Accepted only as the beginning of a longer spelling."""
        return self.written.startswith("--") and self.written != self.flag

    @property
    def is_joined(self) -> bool:
        """Written as one word: `--option=value`, `-r3`."""
        return self.word is self.value_word


@dataclass(frozen=True, slots=True)
class ParseProblem:
    """An error of the parser at `word`. `option` is the spelling it is about, `matches` what an abbreviation could mean.

    `after_script` marks a word of the script that stops the parser all the same.
    """

    trouble: ParseProblemKind
    word: Word
    option: str = ""
    value: str = ""
    matches: tuple[str, ...] = ()
    after_script: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What a launcher reads from its words. `script` is the first positional, `arguments` everything after it."""

    given: tuple[Given, ...] = ()
    problems: tuple[ParseProblem, ...] = ()
    script: Word | None = None
    arguments: tuple[Word, ...] = ()
    is_open: bool = False
    is_help: bool = False
    separator: Word | None = None

    def last(self, dest: str) -> Given | None:
        """The occurrence in effect: argparse keeps the last."""
        for given in reversed(self.given):  # called for every option of every line: no generator
            if given.dest == dest:
                return given
        return None
