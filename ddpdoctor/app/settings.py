"""Settings below the command line: `[tool.ddpdoctor]` of the nearest pyproject.toml, then the site-wide file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from ddpdoctor.app.request import FailOn, Format, UsageError, seconds
from ddpdoctor.app.settings_files import project_files, read_bytes, site_file
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Settings", "read_settings"]

PROJECT_TABLE = "[tool.ddpdoctor] "


@dataclass(frozen=True)
class Settings:
    """The settings, by the option's name in Python (`fail_on`), and why a file was not used.

    `values` are text as on the command line, which options parse; `ignore` is added to the value of `--ignore`.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    ignore: str | None = None
    warnings: tuple[str, ...] = ()

    def ignored(self, given: str | None) -> str | None:
        """The value of `--ignore` together with the codes that the files ignore."""
        return ",".join(part for part in (given, self.ignore) if part) or None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings for the working directory.

    Raises:
        UsageError: an unknown key, or a value that its option does not allow; the message names file, key and what is allowed.
    """
    warnings: list[str] = []
    tables = [*_project_table(warnings), *_site_table(environ, warnings)]
    values: dict[str, object] = {}
    ignored: list[str] = []
    for where, table in tables:
        found = {key: _checked(where, key, value) for key, value in table.items()}
        ignored += [str(found.pop("ignore"))] if found.get("ignore") else []
        values = {key.replace("-", "_"): value for key, value in found.items() if key != "ignore"} | values
    return Settings(values, ",".join(ignored) or None, tuple(warnings))


def _checked(where: str, key: str, value: object) -> object:
    """One value, in the form that its option takes."""
    kind = KINDS.get(key)
    if kind is None:
        near = _nearest(key, KINDS)
        raise UsageError(f"{where}{key}: unknown setting; {near}allowed: {', '.join(KINDS)}")
    return kind(f"{where}{key}", value)


def _flag(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where} = {_shown(value)}: expected true or false")
    return value


def _time(where: str, value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return str(seconds(value))
        except UsageError:
            pass  # reported below, with its place
    raise UsageError(f"{where} = {_shown(value)}: expected a number of seconds above 0")


def _version(where: str, value: object) -> str:
    from ddpdoctor.facts.torchrun_options import version_of

    if not isinstance(value, str) or version_of(value) is None:
        raise UsageError(f'{where} = {_shown(value)}: expected a version such as "2.4.1"')
    return value


def _codes(where: str, value: object) -> str:
    from ddpdoctor.app.rule_selection import prefixes

    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f'{where} = {_shown(value)}: expected a list of codes, such as ["ENV053"]')
    return ",".join(prefixes(where, ",".join(value))) if value else ""


def _one_of(kind: type[Format] | type[FailOn]) -> Callable[[str, object], str]:
    words = [each.value for each in kind]

    def choice(where: str, value: object) -> str:
        if value not in words:
            near = _nearest(str(value), words)
            raise UsageError(f"{where} = {_shown(value)}: {near}expected {', '.join(words[:-1])} or {words[-1]}")
        return str(value)

    return choice


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only wrong settings need it

    near = get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def _shown(value: object) -> str:
    return f"{value!r:.80}"


KINDS: dict[str, Callable[[str, object], object]] = {
    "format": _one_of(Format),
    "select": _codes,
    "ignore": _codes,
    "fail-on": _one_of(FailOn),
    "timeout": _time,
    "join-timeout": _time,
    "quiet": _flag,
    "verbose": _flag,
    "no-color": _flag,
    "no-probe": _flag,
    "no-meet": _flag,
    "torch": _version,
}
"""The keys, the same in both files, and the checks of their values."""


def _project_table(warnings: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """`[tool.ddpdoctor]` of the nearest pyproject.toml at or above the working directory that has one, if any."""
    for path in project_files():
        tools = _parsed(path, warnings).get("tool")
        if isinstance(tools, dict) and "ddpdoctor" in tools:
            table = tools["ddpdoctor"]
            if not isinstance(table, dict):
                raise UsageError(f"{path}: tool.ddpdoctor = {_shown(table)}: expected a table, [tool.ddpdoctor]")
            return [(f"{path}: {PROJECT_TABLE}", table)]
    return []


def _site_table(environ: Mapping[str, str], warnings: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The site-wide file, whose keys are at the top level."""
    path = site_file(environ)
    return [] if path is None else [(f"{path}: ", _parsed(path, warnings))]


def _parsed(path: str, warnings: list[str]) -> dict[str, Any]:
    """A file as TOML; {} and a warning if it is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(read_bytes(path).decode("utf-8", "replace"))
        return found
    except (ValueError, RecursionError) as error:
        # Other tools report the syntax error; ddpdoctor only says that its settings are not used.
        warnings.append(f"{path}: settings not used: {error}")
        return {}
