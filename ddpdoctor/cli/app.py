"""The Typer application. Only the module of the requested command is imported."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

import typer

from ddpdoctor.app.request import UsageError
from ddpdoctor.app.settings import Settings, read_settings
from ddpdoctor.cli.conversion import Command, CommandGroup
from ddpdoctor.cli.help import TAKE_A_LAUNCH
from ddpdoctor.cli.options import CommandLineError, Invocation, WrongOption, WrongUse, with_shared_options
from ddpdoctor.cli.wrong_use import unknown_command, wording

__all__ = ["COMMANDS", "application", "run"]

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "python", "python3", "torchx")

COMMANDS = {
    "check": "check",
    "lint": "lint",
    **dict.fromkeys(("env", "ports", "net", "host", "versions", "gpus", "topo"), "parts"),
    "probe": "probe",
    "rehearse": "rehearse",
    "triage": "triage",
    "hang": "hang",
    "run": "run",
    "collect": "collect",
    "compare": "compare",
    "explain": "manual",
    "rules": "manual",
}
"""The module of each command, by name; its function has the same name."""

MANUAL = ("explain", "rules", "collect")
"""The commands that write no report: a format in the settings does not apply to them."""


def run(words: Sequence[str]) -> int:
    """Run one command line; what follows the first `--` is the launch command. Returns the exit code."""
    own, launch = _split(list(words))
    if own[:1] == ["help"]:
        own = [*own[1:2], "--help"]
    try:
        if not own or own[0] not in COMMANDS:
            return _without_command(own)
        if launch is not None:
            _check_launch(own, launch)
        return _invoke(own, launch)
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.Abort as aborted:
        raise KeyboardInterrupt(*(aborted.__cause__.args if aborted.__cause__ is not None else ())) from None
    except UsageError as error:
        return _explain_usage(WrongOption(str(error)), own, launch)
    except WrongUse as error:
        return _explain_usage(error, own, launch)
    except CommandLineError as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return 2


def _invoke(own: list[str], launch: tuple[str, ...] | None) -> int:
    """Run the command that `own` begins with."""
    is_help = any(word in ("-h", "--help") for word in own)
    settings = Settings() if is_help else read_settings(os.environ)
    given = {key: value for key, value in settings.values.items() if key != "format" or own[0] not in MANUAL}
    # Not command.main(): it handles closed pipes and Ctrl-C differently from what ddpdoctor documents.
    with application(own[:1]).make_context(
        "ddpdoctor", list(own), obj=Invocation(launch, settings), default_map={own[0]: given}
    ) as context:
        result = context.command.invoke(context)
    return result if isinstance(result, int) else 0


def application(names: Iterable[str]) -> Any:
    """The application with these commands, as Typer builds it."""
    app = typer.Typer(
        name="ddpdoctor",
        cls=CommandGroup,
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
    return typer.main.get_command(app)


def _root() -> None:
    """Keeps a single command a command; the overview of all commands is in `help`."""


def _without_command(own: list[str]) -> int:
    """The first word, if it is not a command: an option of the program itself, or a mistake."""
    first = own[0] if own else ""
    if not own or first in ("-h", "--help"):
        from ddpdoctor.cli.help import overview
        from ddpdoctor.cli.output import say

        say(overview())
        return 0 if own else 2
    if first in ("-V", "--version"):
        from ddpdoctor import __version__

        print(f"ddpdoctor {__version__}")
        return 0
    name, _, shell = first.partition("=")
    if name in ("--install-completion", "--show-completion"):
        from ddpdoctor.cli.completion_scripts import install, script

        wanted = shell or "".join(own[1:2])
        print(script(wanted) if name == "--show-completion" else install(wanted))
        return 0
    raise UsageError(unknown_command(first, own, COMMANDS))


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _check_launch(own: list[str], launch: tuple[str, ...]) -> None:
    if own[0] not in TAKE_A_LAUNCH:
        raise UsageError(f"`{own[0]}` takes no launch command after `--`; {', '.join(TAKE_A_LAUNCH)} do")
    if not launch:
        raise UsageError(f"nothing after `--`; expected a launch command: ddpdoctor {own[0]} -- torchrun …")


def _explain_usage(error: Any, own: list[str], launch: tuple[str, ...] | None) -> int:
    """One line that says what is wrong; a launch command without `--` is printed corrected."""
    from ddpdoctor.render.plain import printable

    print(f"error: {printable(wording(error, own))}", file=sys.stderr)
    at = next((i for i, word in enumerate(own) if i and PurePath(word).name in LAUNCHERS), None)
    if launch is None and at is not None and own[0] in TAKE_A_LAUNCH:
        print("A launch command goes after two dashes:", file=sys.stderr)
        print(shlex.join(["ddpdoctor", *own[:at], "--", *own[at:]]), file=sys.stderr)
    return 2
