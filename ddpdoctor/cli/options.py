"""The options that mean the same in every command, and the decorator that gives them to one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpdoctor.app.request import FailOn, Format, Request, UsageError, seconds
from ddpdoctor.cli.progress import ConsoleListener

__all__ = [
    "CommandLineError",
    "WrongOption",
    "WrongUse",
    "seconds_option",
    "with_shared_options",
]

# Typer brought click as a dependency until 0.26 and carries its own copy since: the base classes are reached through
# the one name that both have.
_BASES = {base.__name__: base for base in typer.BadParameter.__mro__}
WrongUse: Any = _BASES["UsageError"]
CommandLineError: Any = _BASES.get("ClickException", WrongUse)


class WrongOption(typer.BadParameter):
    """Wrong use of ddpdoctor, as Typer reports it."""


def seconds_option(given: str | float) -> float:
    """`seconds` as the parser of a Typer option.

    Raises:
        WrongOption: not a number of seconds above 0.
    """
    try:
        return seconds(given)
    except UsageError as error:
        raise WrongOption(str(error)) from None


SHARED_OPTIONS: dict[str, Any] = {
    "format": Annotated[Format, typer.Option("--format", help="How the report is written.")],
    "output": Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write the report to FILE; the table still goes to the terminal."
        ),
    ],
    "select": Annotated[
        str | None, typer.Option("--select", metavar="PREFIX,…", help="Judge only these codes (ENV, NET001, …).")
    ],
    "ignore": Annotated[str | None, typer.Option("--ignore", metavar="PREFIX,…", help="Leave these codes out.")],
    "fail_on": Annotated[FailOn, typer.Option("--fail-on", help="From which severity on the exit code is 1.")],
    "facts": Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="Judge facts that `ddpdoctor collect` saved, not this machine."),
    ],
    "timeout": Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", parser=seconds_option, help="Upper bound of the whole command."),
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Only findings; no progress, no summary.")],
    "no_color": Annotated[bool, typer.Option("--no-color", help="No colours (NO_COLOR does the same).")],
}
"""The fields of `Common` as Typer shows them, in their order."""


def with_shared_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command(common, …)` the common options besides its own; Typer reads them from the signature."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [f for f in fields(Request) if f.name in SHARED_OPTIONS]

    @functools.wraps(command)
    def call(context: typer.Context, **given: Any) -> int:
        options = {f.name: given.pop(f.name) for f in shared}
        listener = ConsoleListener(is_quiet=options["quiet"])
        request = Request(**options, launch=context.obj, listener=listener)
        try:
            return command(_with_target(request), **given)
        except UsageError as error:
            raise WrongOption(str(error)) from None

    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
        *(
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=SHARED_OPTIONS[f.name]
            )
            for f in shared
        ),
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _with_target(request: Request) -> Request:
    """`--output -` is standard output; another file is refused now when it cannot be written later."""
    if request.output is None:
        return request
    if str(request.output) == "-":
        return replace(request, output=None)
    from ddpdoctor.app.output_file import check_target

    check_target("--output", request.output)
    return request
