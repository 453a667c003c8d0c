"""Settings of job files that the program which reads them refuses, or ignores."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Refused", "RefusedKind"]


class RefusedKind(str, Enum):
    """What is wrong with a setting."""

    UNKNOWN = "unknown"
    """Its reader has no setting of this name."""
    TYPE = "type"
    """Its value has another type than its reader takes."""
    VALUE = "value"
    """Its value is not one that its reader takes, or not beside the other settings."""
    REPEATED = "repeated"
    """It stands twice in one place."""
    DANGLING = "dangling"
    """It names something that the file does not have."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One setting: `owner` is what has it (`a container`, `sbatch`), `name` its name, `seen` what stands there, `expected`
    what should. `file` is where it is, "" for the job file itself. `says` is what its reader says.
    """

    kind: RefusedKind
    owner: str
    name: str
    expected: str
    at: Mark
    seen: str = ""
    file: str = ""
    says: str = ""
