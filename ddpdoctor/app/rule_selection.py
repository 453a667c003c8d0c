"""Which rules a command judges: its areas, `--select` and `--ignore`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpdoctor.app.request import Request, UsageError
from ddpdoctor.rules import AREAS, Rule, load

__all__ = ["prefixes", "rules_for", "selection"]


def rules_for(request: Request, areas: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of `areas` that are selected and not ignored.

    Raises:
        UsageError: a prefix that no code can have.
    """
    is_selected = selection(request)
    return tuple(rule for rule in load(areas) if is_selected(rule.code))


def selection(request: Request) -> Callable[[str], bool]:
    """Whether a code is selected and not ignored.

    Raises:
        UsageError: a prefix that no code can have.
    """
    select, ignore = prefixes("--select", request.select), prefixes("--ignore", request.ignore)
    return lambda code: (not select or code.startswith(select)) and not code.startswith(ignore)


def prefixes(option: str, given: str | None) -> tuple[str, ...]:
    """The codes, or beginnings of codes, in a list with commas.

    Raises:
        UsageError: one of them is not the beginning of a code, or the list is empty.
    """
    if given is None:
        return ()
    words = [word.strip() for word in given.split(",")]
    found = tuple(_prefix(option, word) for word in words if word)
    if not found:
        raise UsageError(f"{option} {given!r:.80} has no code; expected at least one, such as ENV,NET001")
    return found


def _prefix(option: str, word: str) -> str:
    code = word.upper()
    letters = code.rstrip("0123456789")
    if not code.isascii() or letters not in AREAS or len(code) - len(letters) > 3:
        raise UsageError(f"{option} {word!r:.80}: expected a code or its beginning: {', '.join(AREAS)}, ENV0, NET001")
    return code
