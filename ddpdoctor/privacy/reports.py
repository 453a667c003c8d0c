"""Reports without secrets: what a file, a pipe or another node may get."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from ddpdoctor.examined import Excerpt, RunDifference
from ddpdoctor.facts.variables import is_secret
from ddpdoctor.findings import Edit, LineEdit
from ddpdoctor.privacy.marks import Marks, mark, marking
from ddpdoctor.privacy.redaction import redact

__all__ = ["SALT", "secrets_in", "secrets_of_variables", "without_secrets", "without_values"]

T = TypeVar("T")

_EXACT = frozenset({"code", "name", "help", "host", "started_at", "caused_by", "candidates", "passed", "kind", "area"})
"""Fields with words of ddpdoctor's own."""
_OWN_TEXT = frozenset({"why", "title", "said_by", "on"})
"""Fields with sentences of ddpdoctor, in which only known secrets are looked for."""
SHORTEST = 6
"""A shorter secret is removed only where its name stands: elsewhere it may be any word."""


class _RandomSalt:
    """The salt of this run, made when it is first needed."""

    @functools.cached_property
    def value(self) -> bytes:
        """16 random bytes."""
        import secrets  # loads OpenSSL, which only a report with a secret needs

        return secrets.token_bytes(16)


SALT = _RandomSalt()


def without_secrets(value: T, sources: Iterable[str] = (), known: Iterable[str] = ()) -> T:
    """A report, a finding, or a tuple of them without secrets; equal secrets get equal marks.

    Args:
        value: the dataclass.
        sources: the texts that the report is about (launch lines, files): a secret that its name shows there is removed
            wherever the report quotes it.
        known: more secrets, such as values of variables.
    """
    texts = {text for text in _strings(value) if text}
    marks = Marks(SALT)
    marks.values.update(known)
    with marking(marks):
        clean = {text: str(redact(text)) for text in texts}
        for words in _lists(value):
            redact(words)  # the word after `--token` is a secret wherever else it stands
        for text in sources:
            redact(text)
        replaced = _replacer(marks)
        redacted: Callable[[str], str] = functools.cache(lambda text: replaced(clean.get(text) or str(redact(text))))
        walked: T = _walked(value, "", functools.cache(replaced), redacted)
        return walked


def secrets_in(texts: Iterable[str]) -> frozenset[str]:
    """The secrets that these texts show."""
    with marking(Marks(SALT)) as marks:
        for text in texts:
            redact(text)
    return frozenset(marks.values)


def secrets_of_variables(variables: Mapping[str, str]) -> frozenset[str]:
    """The values of variables whose names are those of secrets."""
    named = (value for name, value in variables.items() if is_secret(name))
    return frozenset(value for value in named if len(value) >= SHORTEST and not value.startswith(("/", "~", "unix:")))


def without_values(known: Iterable[str]) -> Callable[[str], str]:
    """A function that removes secrets, and these values, from a text."""
    marks = Marks(SALT)
    marks.values.update(known)
    replaced = _replacer(marks)

    def clean(text: str) -> str:
        with marking(marks):
            return str(redact(replaced(text)))

    return clean


def _replacer(marks: Marks) -> Callable[[str], str]:
    """Replaces each known secret as a whole word, the longest first."""
    values = sorted((value for value in marks.values if _is_distinct(value)), key=len, reverse=True)
    if not values:
        return lambda text: text
    pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, values))})(?![A-Za-z0-9_])")
    return lambda text: pattern.sub(lambda found: marks.mark(found[0]), text)


def _is_distinct(value: str) -> bool:
    """Whether a secret is unlikely to be a word of something else."""
    return len(value) >= SHORTEST and not value.isdigit()


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, Enum):
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, RunDifference):
        yield from (value.name, value.failed, value.good, value.place, *value.hosts)
        yield from (f"{value.name.lstrip('-')}={text}" for text in (value.failed, value.good))
    elif isinstance(value, Mapping):
        yield from (f"{name}={item}" for name, item in value.items() if isinstance(item, str))
        yield from _strings(list(value.values()))
    elif is_dataclass(value) and not isinstance(value, (type, Edit, LineEdit)):
        for field in fields(value):
            if field.name not in _EXACT and field.name not in _OWN_TEXT:
                yield from _strings(getattr(value, field.name))


def _lists(value: Any) -> Iterable[list[str]]:
    """Command lines: sequences of words."""
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(each, str) for each in value):
            yield list(value)
        else:
            for each in value:
                yield from _lists(each)
    elif is_dataclass(value) and not isinstance(value, (type, Edit, LineEdit)):
        for field in fields(value):
            if field.name not in _EXACT:
                yield from _lists(getattr(value, field.name))


def _walked(value: Any, field: str, replaced: Callable[[str], str], redacted: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or field in _EXACT:
        return value
    if isinstance(value, str):
        return replaced(value) if field in _OWN_TEXT else redacted(value)
    if isinstance(value, Excerpt):
        return _excerpt(value, redacted)
    if isinstance(value, RunDifference):
        return _difference(value, redacted)
    if isinstance(value, (tuple, list)):
        return type(value)(_walked(each, field, replaced, redacted) for each in value)
    if isinstance(value, Mapping):
        return {name: _variable(name, item, replaced, redacted) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, (type, Edit, LineEdit)):
        named = ((field_.name, getattr(value, field_.name)) for field_ in fields(value) if field_.init)
        changed = {name: _walked(item, name, replaced, redacted) for name, item in named}
        return replace(value, **changed)
    return value


def _variable(name: Any, value: Any, replaced: Callable[[str], str], redacted: Callable[[str], str]) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and is_secret(name):
        return mark(value)
    return _walked(value, "", replaced, redacted)


def _difference(each: RunDifference, redacted: Callable[[str], str]) -> RunDifference:
    """A difference between runs, whose name may be a whole line of a log; the values of a secret setting are removed."""
    is_named = each.kind == "setting" and is_secret(each.name.lstrip("-").upper())
    failed, good = (mark(text) if is_named and text else redacted(text) for text in (each.failed, each.good))
    hosts = tuple(map(redacted, each.hosts))
    return replace(each, name=redacted(each.name), failed=failed, good=good, place=redacted(each.place), hosts=hosts)


def _excerpt(excerpt: Excerpt, redacted: Callable[[str], str]) -> Excerpt:
    """Source lines without secrets; the caret stays under its word, or under the mark."""
    lines = tuple(map(redacted, excerpt.lines))
    at = excerpt.line - excerpt.first
    if not 0 <= at < len(lines) or lines[at] == excerpt.lines[at]:
        return replace(excerpt, lines=lines)
    old, new, start = excerpt.lines[at], lines[at], excerpt.column - 1
    word = redacted(old[start : start + excerpt.length])
    found = new.find(word, min(start, len(redacted(old[:start])))) if word else -1
    column = found if found >= 0 else min(len(redacted(old[:start])), len(new))
    return replace(excerpt, lines=lines, column=column + 1, length=min(len(word), max(0, len(new) - column)))
