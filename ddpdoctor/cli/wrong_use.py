"""Wrong use of ddpdoctor in one line: the value that was given, what is allowed, the nearest valid word."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["unknown_command", "wording"]

CHOICES = re.compile(r"('.*') is not one of ((?:'[^']*'(?:, )?)+)\.?", re.DOTALL)
LONGEST = 80


def unknown_command(first: str, own: list[str], commands: Iterable[str]) -> str:
    """The error of a command line that does not begin with a command."""
    names = [*commands, "help"]
    if first.startswith("-"):
        command = next((word for word in own if word in names), None)
        if command is not None:
            return f"option {first[:LONGEST]!r} before the command; expected it after: ddpdoctor {command} {first[:LONGEST]}"
        known = ("--help", "--version", "--install-completion", "--show-completion")
        return (
            f"unknown option {first[:LONGEST]!r}; {_nearest(first, known) or 'expected a command, --help or --version'}"
        )
    return f"unknown command {first[:LONGEST]!r}; {_nearest(first.lower(), names) or 'ddpdoctor --help lists them'}"


def wording(error: Any, own: list[str]) -> str:
    """A message of Typer, or of ddpdoctor, as one line."""
    context, command = getattr(error, "ctx", None), f"ddpdoctor {own[0]}" if own else "ddpdoctor"
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and option is not None:
        known = (
            [] if context is None else [name for param in context.command.get_params(context) for name in param.opts]
        )
        return f"unknown option {option[:LONGEST]!r}; {_nearest(option, known) or f'{command} --help lists them'}"
    message = " ".join(error.format_message().removeprefix("Invalid value: ").split())
    message = re.sub(r"^Invalid value for '([^']*)': (?:Value error, )?", r"\1 ", message)
    message = re.sub(
        r"^Missing (?:argument|option) '([^']*)'\.?", rf"nothing given for \1; see {command} --help", message
    )
    message = re.sub(r"^Option '([^']*)' requires an argument\.?", r"\1 needs a value", message)
    message = CHOICES.sub(_choices, message)
    return message[:1].lower() + message[1:].rstrip(".") if message[:4] == "Got " else message


def _choices(found: re.Match[str]) -> str:
    given, allowed = found[1], re.findall(r"'([^']*)'", found[2])
    near = _nearest(given.strip("'"), allowed)
    return f"{given[:LONGEST]}: expected {', '.join(allowed[:-1])} or {allowed[-1]}" + (f"; {near}" if near else "")


def _nearest(word: str, known: Iterable[str]) -> str:
    """ "did you mean …?", "" if no word is near."""
    from difflib import get_close_matches  # needed for wrong use only

    near = get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]}?" if near else ""
