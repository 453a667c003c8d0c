"""Packages that ask for the exact type of a number get a plain one: numbers with an origin are subclasses of int and float."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ddpdoctor.rehearsal.hook import origins

__all__ = ["teach"]

_taught: set[str] = set()
_seen = {"modules": 0}


def teach() -> None:
    """Replace the functions of packages that were imported since the last call."""
    if len(sys.modules) == _seen["modules"]:
        return
    _seen["modules"] = len(sys.modules)
    for name in ("yaml.representer", "ruamel.yaml.representer"):
        if name in sys.modules and name not in _taught:
            _taught.add(name)
            _teach_representer(sys.modules[name])
    for name, function in (("orjson", "dumps"), ("msgspec.json", "encode")):
        module: Any = sys.modules.get(name)
        if module is not None and name not in _taught and hasattr(module, function):
            _taught.add(name)
            setattr(module, function, _plain_first(getattr(module, function)))


def _teach_representer(module: Any) -> None:
    kind = getattr(module, "BaseRepresenter", None)
    if kind is None:
        return
    represent = kind.represent_data

    @functools.wraps(represent)
    def represented(self: Any, data: Any) -> Any:
        return represent(self, origins.plain(data) if origins.is_traced(data) else data)

    kind.represent_data = represented


def _plain_first(function: Any) -> Any:
    @functools.wraps(function)
    def called(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(origins.plain(first), *args, **kwargs)

    return called
