"""`@dataclass` as in the standard library, for classes that cost little to declare.

The standard library writes and compiles up to six functions for every class when its module is imported, about 0.6 ms per class:
a third of the processor time of a start, mostly for classes without an instance in that run. Here `__init__` is compiled when
the first instance is made, the other methods are closures, and the list of fields for `dataclasses.fields` and `replace` is made
when it is first asked for.

Not supported, because no class here needs it: inherited fields, `ClassVar`, `InitVar`, `KW_ONLY`, `order`, and `init=False`.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

MISSING = dataclasses.MISSING
UNSUPPORTED = ("ClassVar", "InitVar", "KW_ONLY", "typing.ClassVar", "dataclasses.")

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """`dataclasses.dataclass` with these options.

        Raises:
            TypeError: the class uses what is not supported, or a field without a default after one with a default.
            ValueError: a default can be changed, such as a list.
        """
        if cls is None:
            return lambda declared: _made(declared, frozen, slots, eq)
        return _made(cls, frozen, slots, eq)


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    members = _members(cls)
    body = _methods(members, frozen, eq, cls.__dict__)
    body["__match_args__"] = tuple(members)
    if slots and frozen:
        body |= {"__getstate__": _getstate, "__setstate__": _setstate}
    if slots:
        cls = _with_slots(cls, members, body)
    else:
        for name, member in members.items():
            if isinstance(cls.__dict__.get(name), dataclasses.Field):
                delattr(cls, name) if member.default is MISSING else setattr(cls, name, member.default)
        for name, value in body.items():
            setattr(cls, name, value)
    cls.__init__ = _late_init(cls, members, frozen)  # type: ignore[misc]
    cls.__dataclass_fields__ = _LateFields(cls, members)  # type: ignore[attr-defined]
    return cls


def _members(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a class in their order.

    Raises:
        TypeError, ValueError: as `dataclass` does.
    """
    members: dict[str, dataclasses.Field[Any]] = {}
    has_default = False
    for name, kind in cls.__annotations__.items():
        if not isinstance(kind, str) or kind.startswith(UNSUPPORTED):
            raise TypeError(f"{cls.__qualname__}.{name}: use the standard library's dataclass for {kind}")
        value = cls.__dict__.get(name, MISSING)
        member = value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
        is_optional = member.default is not MISSING or member.default_factory is not MISSING
        if has_default and not is_optional:
            raise TypeError(f"{cls.__qualname__}.{name}: a field without a default follows one with a default")
        if member.default is not MISSING and type(member.default).__hash__ is None:
            raise ValueError(f"{cls.__qualname__}.{name}: a default that can be changed; use default_factory")
        has_default = is_optional
        members[name] = member
    return members


def _methods(members: dict[str, dataclasses.Field[Any]], frozen: bool, eq: bool, own: Any) -> dict[str, Any]:
    """The methods that the class does not define itself."""
    key = _key(tuple(name for name, member in members.items() if member.compare))
    shown = tuple(name for name, member in members.items() if member.repr)

    @reprlib.recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"

    def __eq__(self: object, other: object) -> Any:  # noqa: N807
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(key(self))

    methods: dict[str, Any] = {"__repr__": __repr__}
    if eq:
        methods |= {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}
    if frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
    return {name: method for name, method in methods.items() if name not in own}


def _key(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    """A function that returns the values of an instance that are compared."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _with_slots(cls: type, members: dict[str, dataclasses.Field[Any]], body: dict[str, Any]) -> type:
    """The class again: slots cannot be added to one that exists."""
    namespace = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in members and name not in ("__dict__", "__weakref__")
    }
    again = type(cls)(cls.__name__, cls.__bases__, {**namespace, **body, "__slots__": tuple(members)})
    again.__qualname__ = cls.__qualname__
    return again


def _late_init(cls: type, members: dict[str, dataclasses.Field[Any]], frozen: bool) -> Callable[..., None]:
    """An `__init__` that compiles the real one, puts that in its own place, and calls it."""

    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        compiled = _compiled_init(cls, members, frozen)
        cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *args, **kwargs)

    return __init__


def _compiled_init(cls: type, members: dict[str, dataclasses.Field[Any]], frozen: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    parameters, lines = ["self"], []
    for name, member in members.items():
        parameter, value = name, name
        if member.default_factory is not MISSING:
            scope[f"_make_{name}"] = member.default_factory
            parameter, value = f"{name}=_MISSING", f"_make_{name}() if {name} is _MISSING else {name}"
        elif member.default is not MISSING:
            scope[f"_default_{name}"] = member.default
            parameter = f"{name}=_default_{name}"
        parameters.append(parameter)
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or [" pass"]), scope)
    compiled: Callable[..., None] = scope["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


class _LateFields:
    """The class attribute that `dataclasses.fields`, `replace` and `is_dataclass` read; it replaces itself by the fields."""

    def __init__(self, cls: type, members: dict[str, dataclasses.Field[Any]]) -> None:
        self._cls = cls
        self._members = members

    def __get__(self, instance: object, owner: type | None = None) -> dict[str, dataclasses.Field[Any]]:
        kinds = self._cls.__annotations__
        fields = [(name, kinds[name], member) for name, member in self._members.items()]
        made = dataclasses.make_dataclass(self._cls.__name__, fields, init=False, repr=False, eq=False)
        found: dict[str, dataclasses.Field[Any]] = made.__dataclass_fields__  # type: ignore[attr-defined]
        self._cls.__dataclass_fields__ = found  # type: ignore[attr-defined]
        return found


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    """For pickle: a frozen class with slots has no dictionary, and refuses assignments."""
    return [getattr(self, name) for name in self.__match_args__]


def _setstate(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)
