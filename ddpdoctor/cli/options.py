"""The options that all commands share, and the decorator that adds them to a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpdoctor.app.clock import start_of_command
from ddpdoctor.app.request import FailOn, Format, Request, UsageError, default_timeout, seconds
from ddpdoctor.app.settings import Settings
from ddpdoctor.cli.progress import ConsoleListener
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "COMMON",
    "SHARED_OPTIONS",
    "CommandLineError",
    "Invocation",
    "JoinTimeout",
    "WrongOption",
    "WrongUse",
    "seconds_option",
    "with_shared_options",
]

# Typer depended on click until 0.26 and has its own copy since then: the base classes are reached through
# the only name that both have.
_BASES = {base.__name__: base for base in typer.BadParameter.__mro__}
WrongUse: Any = _BASES["UsageError"]
CommandLineError: Any = _BASES.get("ClickException", WrongUse)


class WrongOption(typer.BadParameter):
    """Wrong use of ddpdoctor, in the form that Typer reports."""


def seconds_option(given: str | float) -> float:
    """`seconds` as the parser of a Typer option.

    Raises:
        WrongOption: not a number of seconds above 0.
    """
    try:
        return seconds(given)
    except UsageError as error:
        raise WrongOption(str(error)) from None


JoinTimeout = Annotated[
    float,
    typer.Option(
        "--join-timeout",
        metavar="SECONDS",
        parser=seconds_option,
        show_default=False,
        help="Time limit for the other nodes to join; default: 30 s.",
    ),
]
"""The option of the commands that wait for other nodes."""

Quick = Annotated[bool, typer.Option("--quick", help="Do not measure what each GPU computes and copies.")]
"""The option of the commands that probe ranks."""


def _one_of(kind: type[Format] | type[FailOn]) -> str:
    words = [each.value for each in kind]
    return f"{', '.join(words[:-1])} or {words[-1]}"


COMMON = "Common options"
"""The heading of the options that all commands share, in the help of one."""

SHARED_OPTIONS: dict[str, Any] = {
    "format": Annotated[
        Format, typer.Option("--format", metavar="FORMAT", help=f"How the report is written: {_one_of(Format)}.")
    ],
    "output": Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the report to FILE; the terminal still gets the table."),
    ],
    "select": Annotated[
        str | None, typer.Option("--select", metavar="PREFIX,…", help="Only rules with these codes (ENV, NET001, …).")
    ],
    "ignore": Annotated[str | None, typer.Option("--ignore", metavar="PREFIX,…", help="No rules with these codes.")],
    "fail_on": Annotated[
        FailOn,
        typer.Option(
            "--fail-on", metavar="LEVEL", help=f"Lowest severity that makes the exit code 1: {_one_of(FailOn)}."
        ),
    ],
    "facts": Annotated[
        list[Path] | None,
        typer.Option(
            "--facts",
            metavar="FILE",
            help="Judge facts saved by `ddpdoctor collect`, or files of nvidia-smi and others, not this machine.",
        ),
    ],
    "timeout": None,
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Only findings: no progress, no summary.")],
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="Also harmless messages, evidence and counts of rules.")
    ],
    "no_color": Annotated[bool, typer.Option("--no-color", help="No colors (as with NO_COLOR).")],
}
"""The fields of `Request` as Typer options; each command has its own default of `timeout`."""


def _timeout(command: str) -> Any:
    limit = default_timeout(command)
    default = "none" if limit is None else f"{limit:g} s"
    text = f"Time limit of the whole command; default: {default}."
    return Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", parser=seconds_option, help=text)]


@dataclass(frozen=True)
class Invocation:
    """What a command receives besides its options: the launch command after `--`, and the settings from files."""

    launch: tuple[str, ...] | None = None
    settings: Settings = field(default_factory=Settings)


def with_shared_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the common options to `command(common, …)`; Typer reads them from the signature."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [f for f in fields(Request) if f.name in SHARED_OPTIONS]

    @functools.wraps(command)
    def call(context: typer.Context, **given: Any) -> int:
        options = {f.name: given.pop(f.name) for f in shared}
        try:
            request = _request(options, context.obj or Invocation())
            if request.more_facts and command.__name__ != "check":
                raise UsageError(f"--facts {request.more_facts[0]}: only `ddpdoctor check` takes several files")
            return command(request, **given)
        except UsageError as error:
            raise WrongOption(str(error)) from None

    annotations = {**SHARED_OPTIONS, "timeout": _timeout(command.__name__)}
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
        *(
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=annotations[f.name])
            for f in shared
        ),
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _request(options: dict[str, Any], invocation: Invocation) -> Request:
    """The request of these options, which are all checked before any work is done."""
    given, settings = options["ignore"], invocation.settings
    if options["quiet"] and options["verbose"]:
        raise UsageError("--quiet and --verbose contradict each other; expected one of them")
    if options["select"] is not None or given is not None:
        from ddpdoctor.app.rule_selection import prefixes

        prefixes("--select", options["select"])
        prefixes("--ignore", given)
    listener = ConsoleListener(is_quiet=options["quiet"])
    for warning in settings.warnings:
        listener.warning(warning)
    facts = options["facts"] or ()
    options = {
        **options,
        "facts": next(iter(facts), None),
        "more_facts": tuple(facts[1:]),
        "ignore": settings.ignored(given),
    }
    return _with_target(Request(**options, launch=invocation.launch, listener=listener, began=start_of_command()))


def _with_target(request: Request) -> Request:
    """`--output -` is standard output; a file that cannot be written is refused before the work."""
    if request.output is None:
        return request
    if str(request.output) == "-":
        return replace(request, output=None)
    from ddpdoctor.app.output_file import check_target

    check_target("--output", request.output)
    return request
