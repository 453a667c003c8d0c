"""What one call of ddpdoctor asks for: the options that all commands share, as plain values."""

from __future__ import annotations

import math
import time
from dataclasses import field
from enum import Enum
from pathlib import Path

from ddpdoctor.app.progress import SILENT, ProgressListener
from ddpdoctor.findings import Severity
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "DEFAULT_SECONDS",
    "FailOn",
    "Format",
    "Request",
    "UsageError",
    "default_timeout",
    "seconds",
    "seconds_left",
]

DEFAULT_SECONDS = 30.0
"""`--timeout` of the commands that only examine this machine."""

OTHER_DEFAULTS = {"check": 120.0, "probe": 120.0, "rehearse": 120.0, "triage": 300.0, "lint": None, "run": None}
"""`--timeout` of the other commands in seconds; None means no limit."""

JUDGING_SHARE = 0.1
"""The part of `--timeout` that is reserved for judging and writing."""


class UsageError(Exception):
    """Wrong use of ddpdoctor: exit code 2 and one line that quotes what was given."""


class Format(str, Enum):
    """How a report is written."""

    table = "table"
    json = "json"
    markdown = "markdown"
    junit = "junit"
    sarif = "sarif"
    github = "github"
    concise = "concise"


class FailOn(str, Enum):
    """Lowest severity that makes the exit code 1."""

    error = "error"
    warning = "warning"
    never = "never"

    @property
    def severity(self) -> Severity | None:
        return None if self is FailOn.never else Severity(self.value)


@dataclass(frozen=True)
class Request:
    """The options of every command.

    `facts` is the first file of `--facts`, `more_facts` the others, which only `check` takes. `launch` is the launch command
    that was given after `--`, None without one; `listener` is shown progress and warnings while the use case runs. `verbose`
    also shows: harmless messages, counts of rules, evidence.
    """

    format: Format = Format.table
    output: Path | None = None
    select: str | None = None
    ignore: str | None = None
    fail_on: FailOn = FailOn.error
    facts: Path | None = None
    more_facts: tuple[Path, ...] = ()
    timeout: float | None = None
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    launch: tuple[str, ...] | None = None
    listener: ProgressListener = field(default=SILENT, compare=False, repr=False)
    began: float = field(default_factory=time.monotonic, compare=False, repr=False)
    """When the command was started (time.monotonic): `timeout` counts from here."""


def seconds(given: str | float) -> float:
    """The parser of options that are a number of seconds.

    Raises:
        UsageError: not a number, not finite, or not above 0.
    """
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{str(given)!r:.80}: expected a number of seconds above 0")
    return number


def default_timeout(command: str) -> float | None:
    """The default `--timeout` of a command in seconds; None means no limit."""
    return OTHER_DEFAULTS.get(command, DEFAULT_SECONDS)


def seconds_left(request: Request, default: float = DEFAULT_SECONDS) -> float:
    """Seconds left for gathering facts, so that the report is written within `--timeout`; `default` may be infinite."""
    whole = request.timeout or default
    return max(0.0, whole * (1 - JUDGING_SHARE) - (time.monotonic() - request.began))
