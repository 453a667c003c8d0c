"""`startup`: what a launch line would start on this machine: programs, interpreter, and imported packages."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.light_dataclass import dataclass

__all__ = ["LookupKind", "LookupResult", "MissingImport", "Startup", "StartupLookup"]


class LookupKind(str, Enum):
    """The kinds of names in a line that were looked up on this machine."""

    PROGRAM = "program"
    ENVIRONMENT = "environment"
    """A conda environment, or the project that uv, poetry or pixi would run in."""
    MODULE = "module"
    """The module after `python -m` or after a launcher's `--module`."""


class LookupResult(str, Enum):
    """The result of the search. `unknown` is never reported as found."""

    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StartupLookup:
    """One name of the line that was looked up. `layer` is the index of its program in the line, outermost first.

    `place` is where it was searched, for a sentence (`PATH`, `the conda environment train`), `path` what was found.
    `similar` is the nearest name there. `missing` is, for a module, the first part that does not exist (`pkg.trian`).
    `reason` says why the result is unknown. `is_local` is False where another machine starts it, so that this one is only a
    hint. `beside` is the path of a program that is missing on PATH and stands beside ddpdoctor's own interpreter.
    """

    layer: int
    kind: LookupKind
    name: str
    result: LookupResult
    place: str = ""
    path: str | None = None
    similar: str | None = None
    missing: str = ""
    reason: str = ""
    is_local: bool = True
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class MissingImport:
    """A top-level import of the script that its interpreter does not find.

    `line` and `column` (from 1) are those of the import. `distribution` is what pip installs, None where that is not known.
    `folder` holds a module of this name and is not on the module search path.
    """

    module: str
    line: int
    column: int
    distribution: str | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Startup(Section):
    """The lookups for the first launch line. None: unknown.

    `python` is the interpreter that runs the script, `torch` its version of torch, `has_torch` whether it has one.
    `script` is the path of the script whose `imports` are missing. `installer` installs a package for this interpreter
    (`/opt/env/bin/python -m pip install`). `is_local` is False where other machines run the script.
    """

    lookups: tuple[StartupLookup, ...] = ()
    python: str | None = None
    python_version: str | None = None
    torch: str | None = None
    has_torch: bool | None = None
    script: str | None = None
    imports: tuple[MissingImport, ...] = ()
    installer: str = "python -m pip install"
    is_local: bool = True
    gaps: tuple[Gap, ...] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why some names could not be looked up, each reason once."""
        reasons = [lookup.reason for lookup in self.lookups if lookup.result is LookupResult.UNKNOWN]
        return tuple(dict.fromkeys((*reasons, *(gap.reason for gap in self.gaps))))
