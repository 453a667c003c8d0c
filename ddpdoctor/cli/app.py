"""The Typer application. Only the module of the command that is asked for is imported."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Annotated

import typer

from ddpdoctor.app.request import UsageError
from ddpdoctor.cli.conversion import Command, CommandGroup
from ddpdoctor.cli.options import CommandLineError, WrongOption, WrongUse, with_shared_options

__all__ = ["COMMANDS", "run"]

TAKE_A_LAUNCH = ("check", "lint", "run")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "python", "python3", "torchx")

COMMANDS = {
    "check": "check",
    "lint": "lint",
    **dict.fromkeys(("env", "ports", "net", "host", "versions", "gpus", "topo"), "parts"),
    "probe": "probe",
    "triage": "triage",
    "hang": "hang",
    "run": "run",
    "collect": "collect",
    "compare": "compare",
    "explain": "manual",
    "rules": "manual",
}
"""The module of each command's function, by the command's name, which is the function's as well."""


def run(words: Sequence[str]) -> int:
    """Run one command line; what follows the first `--` is the launch command. Returns the exit code."""
    own, launch = _split(list(words))
    command = typer.main.get_command(_app(own[:1] if own and own[0] in COMMANDS else COMMANDS))
    try:
        if launch is not None:
            _check_launch(own, launch)
        # Not command.main(): it answers closed pipes and Ctrl-C in its own way, and ours are promised.
        with command.make_context("ddpdoctor", list(own) or ["--help"], obj=launch) as context:
            result = command.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code) if own else 2
    except typer.Abort:
        raise KeyboardInterrupt from None
    except UsageError as error:
        return _explain_usage(WrongOption(str(error)), own, launch)
    except WrongUse as error:
        return _explain_usage(error, own, launch)
    except CommandLineError as error:
        error.show(file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def _app(names: Iterable[str]) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="ddpdoctor",
        cls=CommandGroup,
        help="What is wrong with this PyTorch distributed job, where, and what to type instead.",
        add_completion=False,
        no_args_is_help=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module = importlib.import_module(f"ddpdoctor.cli.{COMMANDS[name]}")
        app.command(name, cls=Command)(with_shared_options(getattr(module, name)))
    return app


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from ddpdoctor import __version__

        typer.echo(f"ddpdoctor {__version__}")
        raise typer.Exit


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _check_launch(own: list[str], launch: tuple[str, ...]) -> None:
    name = next((word for word in own if not word.startswith("-")), "")
    if name not in TAKE_A_LAUNCH:
        raise UsageError(f"{name or 'ddpdoctor'} takes no launch line after --; {', '.join(TAKE_A_LAUNCH)} do")
    if not launch:
        raise UsageError(f"nothing stands after --; expected a launch line: ddpdoctor {name} -- torchrun …")


def _explain_usage(error: WrongUse, own: list[str], launch: tuple[str, ...] | None) -> int:
    message = error.format_message().removeprefix("Invalid value: ").replace(": Value error, ", ": ")
    print(f"ddpdoctor: {message}", file=sys.stderr)
    at = next((i for i, word in enumerate(own) if i and PurePath(word).name in LAUNCHERS), None)
    if launch is None and at is not None and own[0] in TAKE_A_LAUNCH:
        print("A launch line goes after two dashes:", file=sys.stderr)
        print(shlex.join(["ddpdoctor", *own[:at], "--", *own[at:]]), file=sys.stderr)
    elif error.ctx is not None:
        print(f"See: {error.ctx.command_path} --help", file=sys.stderr)
    return 2
