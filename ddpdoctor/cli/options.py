"""The options that mean the same in every command, and the decorator that gives them to one."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpdoctor.cli import STARTED
from ddpdoctor.findings import Severity

__all__ = [
    "DEFAULT_SECONDS",
    "CommandLineError",
    "Common",
    "FailOn",
    "Format",
    "UsageError",
    "WrongUse",
    "seconds",
    "seconds_left",
    "with_common",
]

# Typer brought click as a dependency until 0.26 and carries its own copy since: the base classes are reached through
# the one name that both have.
_BASES = {base.__name__: base for base in typer.BadParameter.__mro__}
WrongUse: Any = _BASES["UsageError"]
CommandLineError: Any = _BASES.get("ClickException", WrongUse)


class Format(str, Enum):
    """How a report is written."""

    table = "table"
    json = "json"
    markdown = "markdown"
    junit = "junit"
    sarif = "sarif"
    github = "github"


class FailOn(str, Enum):
    """From which severity on a finding makes the exit code 1."""

    error = "error"
    warning = "warning"
    never = "never"

    @property
    def severity(self) -> Severity | None:
        return None if self is FailOn.never else Severity(self.value)


class UsageError(typer.BadParameter):
    """Wrong use of ddpdoctor: exit code 2 and one line that quotes what was given."""


def seconds(given: str | float) -> float:
    """The parser of options that are a number of seconds.

    Raises:
        UsageError: no number, not finite, or not above 0.
    """
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{str(given)!r:.80} is no time; expected a number of seconds above 0")
    return number


DEFAULT_SECONDS = 30.0
"""`--timeout` of the commands that only look."""

JUDGING_SHARE = 0.1
"""The part of `--timeout` that is kept for judging and writing."""


@dataclass(frozen=True)
class Common:
    """The common options of one call; `launch` is what stood after `--`, None without it."""

    format: Annotated[Format, typer.Option("--format", help="How the report is written.")] = Format.table
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write the report to FILE; the table still goes to the terminal."
        ),
    ] = None
    select: Annotated[
        str | None, typer.Option("--select", metavar="PREFIX,…", help="Judge only these codes (ENV, NET001, …).")
    ] = None
    ignore: Annotated[str | None, typer.Option("--ignore", metavar="PREFIX,…", help="Leave these codes out.")] = None
    fail_on: Annotated[FailOn, typer.Option("--fail-on", help="From which severity on the exit code is 1.")] = (
        FailOn.error
    )
    facts: Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="Judge facts that `ddpdoctor collect` saved, not this machine."),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", parser=seconds, help="Upper bound of the whole command."),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only findings; no progress, no summary.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours (NO_COLOR does the same).")] = False
    launch: tuple[str, ...] | None = field(default=None)


def seconds_left(common: Common, default: float = DEFAULT_SECONDS) -> float:
    """Seconds that may still be spent on looking, so that the report is written within `--timeout`."""
    whole = common.timeout or default
    return max(0.0, whole * (1 - JUDGING_SHARE) - (time.monotonic() - STARTED))


def with_common(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command(common, …)` the common options besides its own; Typer reads them from the signature."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [f for f in fields(Common) if f.name != "launch"]
    hints = inspect.get_annotations(Common, eval_str=True)

    @functools.wraps(command)
    def call(context: typer.Context, **given: Any) -> int:
        common = Common(**{f.name: given.pop(f.name) for f in shared}, launch=context.obj)
        return command(_with_target(common), **given)

    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
        *(
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in shared
        ),
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _with_target(common: Common) -> Common:
    """`--output -` is standard output; another file is refused now when it cannot be written later."""
    if common.output is None:
        return common
    if str(common.output) == "-":
        return replace(common, output=None)
    from ddpdoctor.cli.output import check_target

    check_target("--output", common.output)
    return common
