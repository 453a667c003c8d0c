"""Converts words of the command line to Python values without pydantic where no conversion is needed.

Typer 0.29 converts every value by pydantic, even a default and a word that stays a word; its import costs more than
everything else that a short command does.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import typer.core

from ddpdoctor.app.request import FailOn, Format
from ddpdoctor.cli.help import EXAMPLES, TAKE_A_LAUNCH
from ddpdoctor.cli.options import COMMON, SHARED_OPTIONS

__all__ = ["Command", "CommandGroup"]

_CHOICES = ((Format,), (FailOn,))
_WORDS = ((str,), (str | None,), (list[str],), (list[str] | None,))


ARGUMENTS = {"[FILE…]...": "[FILE…]", "[PID…]...": "[PID…]", "[PATH…]...": "PATH…", "[FILE FILE…]...": "FILE FILE…"} | {
    "{WORD…}...": "WORD…"
}
"""How the usage shows arguments, instead of Typer's form with brackets and dots for each of them."""

TYPE = re.compile(r" <[^>]*>$")
"""The Python type that Typer adds to the name of an argument."""


class _Quick:
    """Gives Typer only the values that need conversion."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        kinds = inspect.get_annotations(self.callback)  # type: ignore[attr-defined]
        for each in found:
            if hasattr(each, "get_runtime_param") and "process_value" not in vars(each):  # older ones have no pydantic
                kind = get_args(kinds.get(each.name))[:1]
                each.process_value = functools.partial(_value, each, each.process_value, kind)
        return found


class Command(_Quick, typer.core.TyperCommand):
    """A command whose help shows its own options, then the common options, then examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        launch = TAKE_A_LAUNCH.get(self.name or "")
        pieces = [ARGUMENTS.get(each, each) for each in super().collect_usage_pieces(ctx)]
        return [*pieces, *([launch] if launch else [])]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The sections of the help; called by Typer."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], COMMON: []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            is_common = param.name in SHARED_OPTIONS or param.name == "help"
            kind = "Arguments" if param.param_type_name == "argument" else COMMON if is_common else "Options"
            sections[kind] += [(TYPE.sub("", row[0]), row[1])] if row is not None else []
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples; called by Typer."""
        lines = EXAMPLES.get(self.name or "", ())
        if lines:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in lines))


class CommandGroup(_Quick, typer.core.TyperGroup):
    """All commands."""


def _value(parameter: Any, convert: Callable[[Any, Any], Any], kind: tuple[Any, ...], context: Any, value: Any) -> Any:
    """The value of a parameter whose annotation is `kind`, converted by Typer only where that is needed."""
    is_words = kind in _WORDS
    if parameter.callback is not None and value:  # --help: the conversion calls it
        return convert(context, value)
    if isinstance(value, (Format, FailOn, float, bool)):
        return value
    if parameter.nargs != 1 or getattr(parameter, "multiple", False):
        needs_none = is_words or not value
        return tuple(value or ()) if needs_none and (value or not parameter.required) else convert(context, value)
    if value is None:
        return convert(context, value) if parameter.required else None
    if kind in _CHOICES and value in set(kind[0]):
        return kind[0](value)
    return value if is_words and isinstance(value, str) else convert(context, value)
