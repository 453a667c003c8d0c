"""The Typer application: one line a command. What a command does stands in the module that it names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ddpdoctor.cli import check, manual, parts, saving
from ddpdoctor.cli.options import CommandLineError, WrongUse, with_common

__all__ = ["app", "run"]

app = typer.Typer(
    name="ddpdoctor",
    help="What is wrong with this PyTorch distributed job, where, and what to type instead.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from ddpdoctor import __version__

        typer.echo(f"ddpdoctor {__version__}")
        raise typer.Exit


app.command("check")(with_common(check.check))
for _name, _command in parts.COMMANDS.items():
    app.command(_name)(with_common(_command))
app.command("collect")(with_common(saving.collect))
app.command("explain")(with_common(manual.explain))
app.command("rules")(with_common(manual.rules))


def run(words: Sequence[str]) -> int:
    """Run one command line; what stands after the first `--` is the launch line. Returns the exit code."""
    own, launch = _split(list(words))
    command = typer.main.get_command(app)
    try:
        result = command.main(own, prog_name="ddpdoctor", standalone_mode=False, obj=launch)
    except WrongUse as error:
        return _explain_usage(error, launch)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except CommandLineError as error:
        error.show(file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _explain_usage(error: WrongUse, launch: tuple[str, ...] | None) -> int:
    context = error.ctx
    print(f"ddpdoctor: {error.format_message()}", file=sys.stderr)
    if launch is None and context is not None and context.command.name in ("check", "lint", "run"):
        print(f"A launch line goes after two dashes: ddpdoctor {context.command.name} -- torchrun …", file=sys.stderr)
    if context is not None:
        print(f"See: {context.command_path} --help", file=sys.stderr)
    return 2
