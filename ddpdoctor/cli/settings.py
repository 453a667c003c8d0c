"""Which rules a command judges: its areas, `--select`/`--ignore`, and `[tool.ddpdoctor]` in pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddpdoctor.cli.options import Common, UsageError
from ddpdoctor.rules import AREAS, Rule, load

__all__ = ["rules_for"]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def rules_for(common: Common, areas: Iterable[str], command: str = "check") -> tuple[Rule, ...]:
    """The rules of `areas` that are selected and not ignored.

    Raises:
        UsageError: a prefix that no code can have, or a broken `[tool.ddpdoctor]` table.
    """
    table = _table()
    select = _prefixes("--select", common.select) or _listed(table, "select")
    ignore = (*_prefixes("--ignore", common.ignore), *_listed(table, "ignore"))
    return tuple(
        r
        for r in load(areas)
        if (not select or r.code.startswith(select)) and not (ignore and r.code.startswith(ignore))
    )


def _prefixes(option: str, given: str | None) -> tuple[str, ...]:
    words = [] if given is None else [w.strip() for w in given.split(",")]
    return tuple(_prefix(option, w) for w in words if w)


def _prefix(option: str, word: str) -> str:
    letters = word.rstrip("0123456789")
    if letters not in AREAS or len(word) - len(letters) > 3:
        raise UsageError(f"{option} {word!r:.80}: expected a code or its beginning: {', '.join(AREAS)}, ENV0, NET001")
    return word


def _listed(table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(w, str) for w in value):
        raise UsageError(f'[tool.ddpdoctor] {key} = {value!r:.80}: expected a list of codes, such as ["ENV053"]')
    return tuple(_prefix(f"[tool.ddpdoctor] {key}", w) for w in value)


def _table() -> dict[str, Any]:
    """`[tool.ddpdoctor]` of the nearest pyproject.toml at or above the working directory, {} without one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _read(path)
    return {}


def _read(path: Path) -> dict[str, Any]:
    try:
        project = tomllib.loads(path.read_text("utf-8", "replace"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        # A broken pyproject.toml is the user's own tool's business; ours is to say that its settings are not used.
        print(f"ddpdoctor: {path} was not read: {error}", file=sys.stderr)
        return {}
    table = project.get("tool", {}).get("ddpdoctor", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.ddpdoctor] is no table")
    unknown = sorted(set(table) - {"select", "ignore"})
    if unknown:
        raise UsageError(f"{path}: [tool.ddpdoctor] {unknown[0]} is unknown; allowed are select and ignore")
    return table
