"""Strict JSON <-> facts, for frozen dataclasses of plain values.

Understands `str int float bool None`, `X | None`, `tuple[X, ...]`, `dict[str, X]`, str enums and nested dataclasses: what
facts are made of, nothing more. Reading names the place that is wrong: `$.net.interfaces[0].mtu: expected int, got str`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

__all__ = ["FactsError", "decode", "encode", "words_of"]

T = TypeVar("T")
_PLAIN = (str, int, float, bool)


class FactsError(ValueError):
    """A facts file does not say what it should; the message begins with the JSON path."""


def encode(value: object) -> Any:
    """Facts as JSON values. Fields that hold their default are left out, so that files stay readable."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not _is_default(f, getattr(value, f.name))
        }
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], value: object, path: str = "$") -> T:
    """JSON values as facts of type `kind`.

    Raises:
        FactsError: a value has the wrong type, a required field is missing, or a field is unknown.
    """
    return typing.cast(T, _decode(kind, value, path))


def words_of(kind: type) -> frozenset[str]:
    """The names of fields and the values of enums in facts of this type: what JSON of them cannot do without."""
    found: set[str] = set()
    seen: set[Any] = set()
    left: list[Any] = [kind]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        left += _parts(each)[1]
        if isinstance(each, type) and issubclass(each, Enum):
            found.update(str(member.value) for member in each)
        elif dataclasses.is_dataclass(each):
            found.update(field.name for field in dataclasses.fields(each))
            left += _hints(typing.cast(type, each)).values()
    return frozenset(found)


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return value is field.default or (type(value) is type(field.default) and value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    late = getattr(sys.modules[kind.__module__], "late_names", dict)
    return typing.get_type_hints(kind, localns=late())


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether it must be given."""
    hints, missing = _hints(kind), dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    }


def _decode(kind: Any, value: Any, path: str) -> Any:
    if type(value) is kind and kind in _PLAIN:
        return value
    origin, args = _parts(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (a for a in args if a is not type(None))
        return _decode(inner, value, path)
    if origin is tuple:
        _expect(list, value, path)
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _expect(dict, value, path)
        return {key: _decode(args[1], item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_fields(typing.cast(type, kind), value, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(str(m.value) for m in kind)
            raise FactsError(f"{path}: expected one of {allowed}, got {value!r:.80}") from None
    if kind is float and type(value) is int:
        return _float(value, path)
    _expect(kind, value, path)
    return value


def _decode_fields(kind: type, value: Any, path: str) -> Any:
    _expect(dict, value, path)
    known = _fields(kind)
    for key in value:
        if key not in known:
            raise FactsError(f"{path}.{key}: unknown field; {kind.__name__} has {', '.join(sorted(known))}")
    given = {}
    for name, (hint, is_required) in known.items():
        if name in value:
            given[name] = _decode(hint, value[name], f"{path}.{name}")
        elif is_required:
            raise FactsError(f"{path}.{name}: missing")
    return kind(**given)


def _float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise FactsError(f"{path}: expected float, got an int of {value.bit_length()} bits") from None


def _expect(kind: Any, value: object, path: str) -> None:
    # bool is an int to Python, but not to a reader of facts.
    if type(value) is not kind:
        raise FactsError(f"{path}: expected {kind.__name__}, got {type(value).__name__} {value!r:.60}")
