"""One program of a launch line, with what its parser reads from its words."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given, Reading
from ddpdoctor.facts.launch.typo import Typo
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Layer", "Variable", "starts_ranks"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that the line sets for what it starts; `word` is the assignment. The value may contain UNKNOWN pieces."""

    name: str
    value: str
    word: Word


@dataclass(frozen=True, slots=True)
class Layer:
    """One program of the line. `program` is its name as written, `own` its words up to the next layer or the script.

    For launchers with a script, `reading` is what their parser reads from the words. `variables` are the assignments
    of the line for this program. `preceding` are the commands that a shell runs before the next layer, in shell text
    (`bash -c 'source activate && torchrun …'`): the first two words of each.
    """

    launcher: LauncherKind
    program: Word
    own: tuple[Word, ...] = ()
    reading: Reading = field(default_factory=Reading)
    variables: tuple[Variable, ...] = ()
    is_shell_text: bool = False
    typos: tuple[Typo, ...] = ()
    preceding: tuple[str, ...] = ()

    @property
    def is_garbled(self) -> bool:
        """The parser fails, or misreads a word: the rest of its reading may not be what was meant. A word of the script on
        which only some versions of the parser stop changes nothing of what it has read.
        """
        return bool(self.typos) or any(not problem.after_script for problem in self.reading.problems)

    @property
    def name(self) -> str:
        """The program's name without its folder."""
        return self.program.text.rpartition("/")[2]

    def given(self, dest: str) -> Given | None:
        """The option in effect, None if the line does not give it."""
        return self.reading.last(dest)

    def value(self, dest: str) -> str | None:
        """The value on the line, None without one; it may contain UNKNOWN pieces."""
        given = self.reading.last(dest)
        return None if given is None else given.value


def starts_ranks(launcher: LauncherKind) -> bool:
    """A launcher that starts the ranks of one node itself."""
    return launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY, LauncherKind.ACCELERATE, LauncherKind.DEEPSPEED)
