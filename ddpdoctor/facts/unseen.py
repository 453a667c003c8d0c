"""Fields that could not be examined because the part of the system that shows them is missing: /proc that is not mounted.

Their defaults (no leftovers, no adapters) would count as facts. `guarded` wraps a section for one rule: a field without a
value raises CannotLook if its default would be a fact, and is remembered, so that the rule is skipped unless it
found something.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from ddpdoctor.facts.gaps import CannotLook, Section, Why

__all__ = ["guarded", "unseen"]

T = TypeVar("T")


def unseen(section: Section, name: str) -> dict[str, str]:
    """The reason for each field of a section, named `name`, whose source is missing."""
    return {gap.path.removeprefix(f"{name}."): gap.reason for gap in section.gaps if gap.source}


def guarded(section: T, fields: Mapping[str, str], seen: dict[str, str]) -> T:
    """The section for one rule; `seen` gets those of `fields` that the rule reads, with the reasons."""
    return cast(T, _guard(section, fields, seen))


def _guard(value: Any, fields: Mapping[str, str], seen: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_guard(item, fields, seen) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    copy: Any = object.__new__(_guard_of(type(value)))
    for field in dataclasses.fields(value):
        object.__setattr__(copy, field.name, _guard(getattr(value, field.name), _inner(fields, field.name), seen))
    object.__setattr__(copy, "_unseen", ({n: r for n, r in fields.items() if "." not in n}, seen))
    return copy


def _inner(fields: Mapping[str, str], name: str) -> dict[str, str]:
    """The fields of the records in the field `name`."""
    return {path.removeprefix(f"{name}."): reason for path, reason in fields.items() if path.startswith(f"{name}.")}


@functools.cache
def _guard_of(kind: type) -> type:
    words = {"__slots__": ("_unseen",), "__getattribute__": _read, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), words)


def _read(record: Any, name: str) -> Any:
    value = object.__getattribute__(record, name)
    if name.startswith("_"):
        return value
    fields, seen = object.__getattribute__(record, "_unseen")
    if name in fields:
        seen[name] = fields[name]
        if value is not None:
            raise CannotLook(fields[name], Why.UNANSWERED)
    return value
