"""Words of a launch line that the parser reads differently than intended."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.launch.words import Word
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Typo", "TypoKind"]


class TypoKind(str, Enum):
    """What is wrong with the word."""

    SINGLE_DASH = "single dash"
    UNICODE_DASH = "unicode dash"
    SMART_QUOTE = "smart quote"
    ODD_SPACE = "no-break space"
    JOINED = "quoted together"
    SPACED_EQUALS = "spaces around ="
    STRAY = "stray word"
    LIST = "space in a list"
    NO_COMMAND = "no subcommand"
    PROGRAM = "misspelled program"


@dataclass(frozen=True, slots=True)
class Typo:
    """`meant` are the words to write in place of `words`; empty: remove the words."""

    kind: TypoKind
    words: tuple[Word, ...]
    meant: tuple[str, ...] = ()
