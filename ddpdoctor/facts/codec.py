"""Strict JSON <-> facts, for frozen dataclasses of plain values.

Supports `str int float bool None`, `X | None`, `tuple[X, ...]`, `dict[str, X]`, str enums and nested dataclasses: the
types that facts use. Errors name the wrong place: `$.net.interfaces[0].mtu: expected int, got str`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

__all__ = ["FactsError", "decode", "encode", "schema_names"]

T = TypeVar("T")


LARGEST = 2**64
"""Counters of kernels and devices have at most 64 bits; arithmetic with larger numbers may overflow."""


class FactsError(ValueError):
    """A facts file has a wrong value; the message begins with the JSON path."""


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
    try:
        return typing.cast(T, _reader(typing.cast(Any, kind))(value))
    except FactsError as error:
        raise FactsError(f"{path}{error}") from None


def schema_names(kind: type) -> frozenset[str]:
    """The field names and enum values of this type: the strings that its JSON must keep."""
    names: set[str] = set()
    visited: set[Any] = set()
    left: list[Any] = [kind]
    while left:
        hint = left.pop()
        if hint not in visited:
            visited.add(hint)
            names.update(_own_names(hint))
            left += _parts(hint)[1]
            left += _hints(hint).values() if dataclasses.is_dataclass(hint) and isinstance(hint, type) else ()
    return frozenset(names)


def _own_names(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


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


Reader = Callable[[Any], Any]
"""Makes a value of one type from JSON; its error names the place within that value, and its callers prepend their own."""


@functools.cache
def _reader(kind: Any) -> Reader:
    """The reader of a type: built once per type, because files with thousands of nodes are read."""
    origin, args = _parts(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (a for a in args if a is not type(None))
        return _optional(_reader(inner))
    if origin is tuple:
        return _items(_reader(args[0]))
    if origin is dict:
        return _entries(_reader(args[1]))
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind)
    return _plain(kind)


def _optional(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _plain(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind and (kind is not int or -LARGEST <= value <= LARGEST):
            return value
        if kind is float and type(value) is int:
            return _float(value)
        if type(value) is int is kind:
            raise FactsError(f": expected an integer of 64 bits, got one of {value.bit_length()} bits")
        raise _unexpected(kind, value)

    return read


def _member(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(str(m.value) for m in kind)
            raise FactsError(f": expected one of {allowed}, got {value!r:.80}") from None

    return read


def _items(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _unexpected(list, value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item))
        except FactsError as error:
            raise FactsError(f"[{len(items)}]{error}") from None
        return tuple(items)

    return read


def _entries(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _unexpected(dict, value)
        entries: dict[str, Any] = {}
        for key, item in value.items():
            try:
                entries[key] = inner(item)
            except FactsError as error:
                raise FactsError(f".{key}{error}") from None
        return entries

    return read


def _record(kind: type) -> Reader:
    return functools.partial(_read_record, kind, {})


def _read_record(kind: type, known: dict[str, tuple[Reader, bool]], value: Any) -> Any:
    """Read one record. `known` is filled on first use, because a record may contain records of its own type."""
    if type(value) is not dict:
        raise _unexpected(dict, value)
    if not known:
        known.update({name: (_reader(hint), is_required) for name, (hint, is_required) in _fields(kind).items()})
    given = {}
    for key, item in value.items():
        if key not in known:
            raise FactsError(f".{key}: unknown field; {kind.__name__} has {', '.join(sorted(known))}")
        try:
            given[key] = known[key][0](item)
        except FactsError as error:
            raise FactsError(f".{key}{error}") from None
    _require(known, given)
    return kind(**given)


def _require(known: Mapping[str, tuple[Reader, bool]], given: Mapping[str, Any]) -> None:
    if len(given) < len(known):
        for name, (_, is_required) in known.items():
            if is_required and name not in given:
                raise FactsError(f".{name}: missing")


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise FactsError(f": expected float, got an int of {value.bit_length()} bits") from None


def _unexpected(kind: type, value: object) -> FactsError:
    # bool is a subclass of int in Python; in facts the two are different types.
    return FactsError(f": expected {kind.__name__}, got {type(value).__name__} {value!r:.60}")
