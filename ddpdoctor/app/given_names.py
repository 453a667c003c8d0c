"""Reports with the names that the user gave in place of the temporary files that stood for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

__all__ = ["with_given_names"]

T = TypeVar("T")


def with_given_names(value: T, names: Mapping[str, str]) -> T:
    """A report, with every text in it that names a temporary file or folder.

    Args:
        value: the report, or a part of it.
        names: the names that the user gave, by the path of what stood for them.
    """
    named: T = _named(value, names) if names else value
    return named


def _named(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for path, name in names.items():
            if path in value:
                value = str(value).replace(path, name)
        return value
    if isinstance(value, tuple):
        items = tuple(_named(each, names) for each in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if not is_dataclass(value) or isinstance(value, type):
        return value
    before = {field_.name: getattr(value, field_.name) for field_ in fields(value) if field_.init}
    after = {name: _named(each, names) for name, each in before.items()}
    changed = {name: each for name, each in after.items() if each is not before[name]}
    return replace(value, **changed) if changed else value
