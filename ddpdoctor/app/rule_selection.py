"""Which rules a command judges: its areas, `--select`/`--ignore`, and `[tool.ddpdoctor]` in pyproject.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ddpdoctor.app.progress import ProgressListener
from ddpdoctor.app.request import Request, UsageError
from ddpdoctor.rules import AREAS, Rule, load

__all__ = ["rule_named", "rules_for", "selection"]


def rules_for(request: Request, areas: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of `areas` that are selected and not ignored.

    Raises:
        UsageError: a prefix that no code can have, or a broken `[tool.ddpdoctor]` table.
    """
    is_selected = selection(request)
    return tuple(each for each in load(areas) if is_selected(each.code))


def selection(request: Request) -> Callable[[str], bool]:
    """Whether a code is selected and not ignored.

    `--select` replaces the selection of pyproject.toml, `--ignore` adds to what it ignores.

    Raises:
        UsageError: a prefix that no code can have, or a broken `[tool.ddpdoctor]` table.
    """
    table = _table(request.listener)
    select = _prefixes("--select", request.select) or _listed(table, "select")
    ignore = (*_prefixes("--ignore", request.ignore), *_listed(table, "ignore"))
    return lambda code: (not select or code.startswith(select)) and not code.startswith(ignore)


def rule_named(wanted: str) -> Rule:
    """The rule with this code or name, in any case.

    Raises:
        UsageError: none has it; the message names the nearest ones.
    """
    known = load()
    word = wanted.strip().lower().replace("_", "-")
    for each in known:
        if word in (each.code.lower(), each.name):
            return each
    from difflib import get_close_matches

    near = get_close_matches(word, [name for r in known for name in (r.code.lower(), r.name)], 3)
    shown = [name.upper() if name[-1:].isdigit() and "-" not in name else name for name in near]
    hint = f"did you mean {' or '.join(shown)}?" if shown else "`ddpdoctor rules` lists them"
    raise UsageError(f"{wanted!r:.80} is no code and no name; {hint}")


def _prefixes(option: str, given: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    words = [word.strip() for word in given.split(",")]
    found = tuple(_prefix(option, word) for word in words if word)
    if not found:
        raise UsageError(f"{option} {given!r:.80} names no code; expected one or more, such as ENV,NET001")
    return found


def _prefix(option: str, word: str) -> str:
    code = word.upper()
    letters = code.rstrip("0123456789")
    if not code.isascii() or letters not in AREAS or len(code) - len(letters) > 3:
        raise UsageError(f"{option} {word!r:.80}: expected a code or its beginning: {', '.join(AREAS)}, ENV0, NET001")
    return code


def _listed(table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(w, str) for w in value):
        raise UsageError(f'[tool.ddpdoctor] {key} = {value!r:.80}: expected a list of codes, such as ["ENV053"]')
    return tuple(_prefix(f"[tool.ddpdoctor] {key}", w) for w in value)


def _table(listener: ProgressListener) -> dict[str, Any]:
    """`[tool.ddpdoctor]` of the nearest pyproject.toml at or above the working directory that has one, else {}."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was removed
        return {}
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if os.path.isfile(path):
            table = _read(path, listener)
            if table is not None:
                return table
    return {}


def _read(path: Path, listener: ProgressListener) -> dict[str, Any] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        project = tomllib.loads(path.read_text("utf-8", "replace"))
    except (OSError, tomllib.TOMLDecodeError, RecursionError) as error:
        # The file belongs to the project, whose tools will complain; ours is to say that its settings are not used.
        listener.notice(f"{path} was not read: {error}")
        return None
    tools = project.get("tool")
    if not isinstance(tools, dict) or "ddpdoctor" not in tools:
        return None
    table = tools["ddpdoctor"]
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.ddpdoctor] is no table")
    unknown = sorted(set(table) - {"select", "ignore"})
    if unknown:
        raise UsageError(f"{path}: [tool.ddpdoctor] {unknown[0]} is unknown; allowed are select and ignore")
    return table
