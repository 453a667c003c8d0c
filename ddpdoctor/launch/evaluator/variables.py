"""The variables of an imagined shell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.arithmetic import ArithmeticFailed, evaluate
from ddpdoctor.launch.evaluator.values import EMPTY, NOT_KNOWN, Value, joined, text_value
from ddpdoctor.light_dataclass import dataclass

__all__ = ["MOST_ELEMENTS", "ShellVariable", "Variables"]

MOST_ELEMENTS = 4_096
"""Elements of one array."""


@dataclass(frozen=True, slots=True)
class ShellVariable:
    """One variable. `elements` are those of an array by index or key, None for a plain one. `is_local`: of a function."""

    value: Value = EMPTY
    elements: dict[str, Value] | None = None
    is_exported: bool = False
    is_integer: bool = False
    is_readonly: bool = False
    is_map: bool = False

    def element(self, index: str) -> Value | None:
        """One element; of a plain variable it is element 0."""
        if self.elements is None:
            return self.value if index == "0" else None
        return self.elements.get(index)

    @property
    def first(self) -> Value:
        """What `$NAME` gives: the value, or element 0."""
        return self.value if self.elements is None else self.elements.get("0", EMPTY)


@dataclass(slots=True)
class Variables:
    """The variables of one shell.

    `is_closed`: what is not set here is not set at all, as in a test; else it may have been set before.
    """

    named: dict[str, ShellVariable] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)
    is_closed: bool = False
    flags: dict[str, dict[str, bool]] = field(default_factory=dict)
    """What was declared of variables that are not set yet: `export NAME` before `NAME=value`."""
    private: frozenset[str] = frozenset()
    """Variables that the shell around this one has set and did not pass on: they are not set here."""
    missed: dict[str, None] = field(default_factory=dict)
    """Those of them that were used here, in order; shared with all copies."""

    def copy(self) -> Variables:
        """Another shell's variables with the same content."""
        return Variables(dict(self.named), set(self.unset), self.is_closed, dict(self.flags), self.private, self.missed)

    def miss(self, name: str) -> None:
        """Note that a variable is used that was not passed on."""
        if name in self.private:
            self.missed[name] = None

    def get(self, name: str) -> ShellVariable | None:
        """The variable, None where it is not set."""
        return self.named.get(name)

    def is_open(self, name: str) -> bool:
        """Whether something outside may have set a variable that is not set here."""
        return name not in self.named and not self.is_closed and name not in self.unset

    def value(self, name: str, index: str | None = None) -> Value | None:
        """What `$NAME` or `${NAME[INDEX]}` holds; None where it is not set, unknown where that cannot be known."""
        variable = self.named.get(name)
        if variable is None:
            return NOT_KNOWN if self.is_open(name) else None
        return variable.element("0" if index is None else index)

    def elements(self, name: str) -> list[Value]:
        """What `${NAME[@]}` gives."""
        variable = self.named.get(name)
        if variable is None:
            return [NOT_KNOWN] if self.is_open(name) else []
        if variable.elements is None:
            return [variable.value]
        return [variable.elements[key] for key in self.indices(name)]

    def indices(self, name: str) -> list[str]:
        """What `${!NAME[@]}` gives, in bash's order."""
        variable = self.named.get(name)
        if variable is None or variable.elements is None:
            return [] if variable is None else ["0"]
        keys = list(variable.elements)
        return keys if variable.is_map else sorted(keys, key=int)

    def assign(self, name: str, value: Value, *, index: str | None = None, adds: bool = False) -> None:
        """`NAME=value`, `NAME[index]=value`; with `adds` `+=`."""
        variable = self._declared(name)
        if variable.is_readonly:
            return
        before = (variable.first if index is None else variable.element(index)) or EMPTY
        if adds and name not in self.named and self.is_open(name):
            before = NOT_KNOWN
        value = self._added(variable, before, value) if adds or variable.is_integer else value
        if index is None and variable.elements is None:
            variable = replace(variable, value=value)
        else:
            elements = dict(variable.elements if variable.elements is not None else self._as_elements(variable, name))
            if len(elements) < MOST_ELEMENTS:
                elements[index or "0"] = value
            variable = replace(variable, elements=elements)
        self.named[name] = variable
        self.unset.discard(name)

    def assign_array(self, name: str, values: dict[str, Value], *, adds: bool = False) -> None:
        """`NAME=(…)`, `NAME+=(…)`; the keys of `values` count from 0 where none is written."""
        variable = self._declared(name)
        if variable.is_readonly:
            return
        elements = dict(self._as_elements(variable, name)) if adds else {}
        shift = 0
        if adds and not variable.is_map:
            shift = max((int(key) for key in elements), default=-1) + 1
        for key, value in list(values.items())[: MOST_ELEMENTS - len(elements)]:
            elements[str(int(key) + shift) if shift and key.isdigit() else key] = value
        self.named[name] = replace(variable, elements=elements, value=EMPTY)
        self.unset.discard(name)

    def forget(self, name: str) -> None:
        """Make its value unknown."""
        variable = self.named.get(name, ShellVariable())
        elements = None if variable.elements is None else {"0": NOT_KNOWN}
        self.named[name] = replace(variable, value=variable.value.without_knowledge(), elements=elements)

    def remove(self, name: str) -> None:
        """`unset NAME`."""
        self.named.pop(name, None)
        self.flags.pop(name, None)
        self.unset.add(name)

    def mark(self, name: str, **flags: bool) -> None:
        """`export`, `readonly`, `declare -i`, …; a variable that is not set yet gets the flag when it is."""
        if name not in self.named and not flags.get("is_map"):
            self.flags[name] = {**self.flags.get(name, {}), **flags}
        else:
            self.named[name] = _with_flags(self.named.get(name, ShellVariable()), flags)
            if flags.get("is_map") and self.named[name].elements is None:
                self.named[name] = replace(self.named[name], elements={})

    def exported(self) -> dict[str, Value]:
        """The environment that a program gets."""
        return {name: variable.first for name, variable in self.named.items() if variable.is_exported}

    def read_number(self, name: str) -> str:
        """For arithmetic: see `arithmetic.Numbers`."""
        base, _, rest = name.partition("[")
        index = str(evaluate(rest[:-1], self)) if rest else None
        value = self.value(base, index)
        if value is None:
            return ""
        if not value.is_known:
            raise ArithmeticFailed(f"{name} is unknown")
        return value.text

    def write_number(self, name: str, number: int) -> None:
        """For arithmetic: see `arithmetic.Numbers`."""
        base, _, rest = name.partition("[")
        self.assign(base, Value(str(number)), index=str(evaluate(rest[:-1], self)) if rest else None)

    def _declared(self, name: str) -> ShellVariable:
        return self.named[name] if name in self.named else _with_flags(ShellVariable(), self.flags.pop(name, {}))

    def _as_elements(self, variable: ShellVariable, name: str) -> dict[str, Value]:
        if variable.elements is not None:
            return variable.elements
        return {"0": variable.value} if name in self.named else {}

    def _added(self, variable: ShellVariable, before: Value, value: Value) -> Value:
        if not variable.is_integer:
            return joined((before, value))
        try:
            number = evaluate(value.text, self) + (evaluate(before.text, self) if before.text else 0)
        except ArithmeticFailed:
            return text_value(UNKNOWN, before, value)
        return text_value(str(number), before, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)


def _with_flags(variable: ShellVariable, flags: dict[str, bool]) -> ShellVariable:
    return replace(
        variable,
        is_exported=flags.get("is_exported", variable.is_exported),
        is_integer=flags.get("is_integer", variable.is_integer),
        is_readonly=flags.get("is_readonly", variable.is_readonly),
        is_map=flags.get("is_map", variable.is_map),
    )
