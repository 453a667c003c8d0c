"""Shell completion: candidates for the last word of a command line. The scripts of the shells are in `completion_scripts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.app.request import FailOn, Format
from ddpdoctor.cli.app import COMMANDS, application

__all__ = ["candidates"]


def candidates(words: Sequence[str]) -> list[str]:
    """Candidates for the last of these words; none if file names should be completed."""
    *before, last = words or [""]
    if "--" in before:
        return []
    if last == "=" and before:  # bash splits the word at the sign
        before, last = [*before, "="], ""
    if before[-1:] == ["="]:
        before = before[:-1]
    if not before:
        return _beginning(last, (*COMMANDS, "help", "--help", "--version", "--install-completion", "--show-completion"))
    if before[0] == "help":
        return _beginning(last, COMMANDS)
    if before[0] not in COMMANDS:
        return []
    option, equals, value = last.partition("=")
    if equals:
        return [f"{option}={each}" for each in _values(option, value)]
    if last.startswith("-"):
        return _beginning(last, _options(before[0]))
    if before[0] == "explain" and not before[-1].startswith("-"):
        return _codes(last)
    return _values(before[-1], last)


def _values(option: str, value: str) -> list[str]:
    """The values of an option with a fixed set of values."""
    if option == "--format":
        return _beginning(value, (each.value for each in Format))
    if option == "--fail-on":
        return _beginning(value, (each.value for each in FailOn))
    if option in ("--select", "--ignore"):
        done, comma, last = value.rpartition(",")
        return [done + comma + code for code in _codes(last)]
    return []


def _codes(beginning: str) -> list[str]:
    """The codes that begin with this: the areas first, then the codes of one area, whose rules are the only ones imported."""
    from ddpdoctor.rules import AREAS, load

    word = beginning.upper()
    prefix = word.rstrip("0123456789")
    if prefix not in AREAS:
        return _beginning(word, AREAS)
    return _beginning(word, (rule.code for rule in load((AREAS[prefix],))))


def _options(command: str) -> list[str]:
    """The options of a command, as Typer knows them."""
    group = application([command])
    with group.make_context("ddpdoctor", [command], resilient_parsing=True) as context:
        found = group.get_command(context, command).get_params(context)
    return [name for each in found if each.param_type_name == "option" for name in each.opts]


def _beginning(start: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(start)})
