"""`job_file`: a shell or batch file as a whole: its text, and what executing it on an imagined cluster showed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.launch.record import LaunchLine

__all__ = ["FileCommand", "FileLaunch", "JobFile", "MissingVariable", "TextSpan"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The characters `start` to before `end` of the file."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FileCommand:
    """A command that the file runs: a program, a builtin, or a function.

    `words` are its words (pieces that cannot be known are UNKNOWN), `span` is where it stands. `host` is the imagined host,
    `via` the launchers around it, outermost first. `is_certain` is False in a branch that may not be taken.
    """

    words: tuple[str, ...]
    span: TextSpan
    host: str = ""
    via: tuple[str, ...] = ()
    is_background: bool = False
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class FileLaunch:
    """A launcher, or a rank without one, on one imagined host.

    `line` is the launch line that it amounts to. `group` numbers the statement that starts it: what one statement starts on
    all hosts has one group. `order` is the place of that statement among the commands of the file. `gpus` are those of its
    host (None: not known). `fixed_port` is the port that it uses in every run of the file.
    """

    line: LaunchLine
    span: TextSpan
    host: str
    via: tuple[str, ...]
    group: int
    order: int
    is_background: bool = False
    is_certain: bool = True
    gpus: int | None = None
    fixed_port: int | None = None


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
class JobFile(Section):
    """One shell or batch file.

    `commands` are those of its own shell in the order in which they run; `programs` are other programs than launchers
    that srun, mpirun or ssh start, host by host. `launches` are its launchers and ranks. `missing` are variables
    that are empty where they are used. `late_options` are `#SBATCH` lines after
    the first command, which sbatch ignores. `is_batch`: it has `#SBATCH` lines; then `is_array` says whether they ask for a
    job array and `gpus` how many GPUs per node. `is_complete`: everything in it was executed.
    """

    path: str
    text: str
    commands: tuple[FileCommand, ...] = ()
    programs: tuple[FileCommand, ...] = ()
    launches: tuple[FileLaunch, ...] = ()
    missing: tuple[MissingVariable, ...] = ()
    late_options: tuple[TextSpan, ...] = ()
    is_batch: bool = False
    is_array: bool = False
    is_exclusive: bool = False
    is_complete: bool = True
    gpus: int | None = None
    gaps: tuple[Gap, ...] = field(default=())
