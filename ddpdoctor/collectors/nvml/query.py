"""One NVML query at a time, and the line of its result.

["?", CALL, GPU]             about to call: the last such line names the call that hung
["=", SUBJECT, FACT, VALUE]  an answer; SUBJECT is "node", a GPU's index, "3 link 5" or "0-1"
["!", SUBJECT, FACT, CODE]   an error, and the name of its code
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Asker", "Subject", "bits", "field", "members", "say"]

Subject = str | int


class Asker:
    """Makes one query at a time and records its result."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        # pynvml raises more than NVMLError: for an old driver, a changed prototype, or bytes that are not text.
        self.errors = (
            nvml.NVMLError,
            nvml.NVMLLibraryMismatchError,
            ctypes.ArgumentError,
            AttributeError,
            TypeError,
            ValueError,
        )
        self.codes = {
            getattr(nvml, name): name.removeprefix("NVML_ERROR_")
            for name in dir(nvml)
            if name.startswith("NVML_ERROR_") and isinstance(getattr(nvml, name), int)
        }

    def ask(self, subject: Subject, facts: str | Sequence[str], function: str, *args: Any, pick: Any = None) -> Any:
        """One call. Writes its answer or its error code for each of `facts`; returns the answer, or None."""
        names = (facts,) if isinstance(facts, str) else tuple(facts)
        say("?", function, subject)
        try:
            answer = getattr(self.nvml, function)(*args)
            values = plain(pick(answer) if pick else answer, len(names))
        except self.errors as error:
            code = self.code(error)
            for name in names:
                say("!", subject, name, code)
            return None
        for name, value in zip(names, values, strict=True):
            say("=", subject, name, value)
        return answer

    def first(self, subject: Subject, function: str, *args: Any) -> tuple[Any, str]:
        """A call whose answer is not written as a fact: the answer, and "" or the error code."""
        say("?", function, subject)
        try:
            return getattr(self.nvml, function)(*args), ""
        except self.errors as error:
            return None, self.code(error)

    def code(self, error: Exception) -> str:
        """The name of an error: that of the NVML code, or `CODE_4711` for one without a name."""
        value = getattr(error, "value", None)
        if value is not None:
            return self.codes.get(value, f"CODE_{value}")
        if isinstance(error, (self.nvml.NVMLLibraryMismatchError, AttributeError)):
            return "FUNCTION_NOT_FOUND"
        return type(error).__name__


def say(*words: Any) -> None:
    """Write one line without buffering: a buffer is lost when this process is killed."""
    os.write(1, json.dumps(words).encode() + b"\n")


def plain(answer: Any, count: int) -> list[Any]:
    """`count` JSON values: bytes become text."""
    values = list(answer) if count > 1 else [answer]
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} facts")
    return [v.decode() if isinstance(v, bytes) else v for v in values]


def members(names: Sequence[str]) -> Callable[[Any], Any] | None:
    """A reader of structure members; "a,b,c" gives a list."""
    if not names:
        return None
    wanted = names[0].split(",")
    return lambda s: [getattr(s, n) for n in wanted] if len(wanted) > 1 else getattr(s, wanted[0])


def field(asker: Asker, index: int, handle: Any, fact: str, number: int, scope: int = 0, subject: Subject = "") -> Any:
    """One field value. The call may succeed while the field has its own error code."""

    def value(fields: Any) -> Any:
        if fields[0].nvmlReturn:
            raise asker.nvml.NVMLError(fields[0].nvmlReturn)
        member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[fields[0].valueType]
        return getattr(fields[0].value, member)

    answer = asker.ask(subject or index, fact, "nvmlDeviceGetFieldValues", handle, [(number, scope)], pick=value)
    return None if answer is None else value(answer)


def bits(words: Any) -> str:
    """The set bits of a mask as ranges: `0-55,112-167`, "" for none."""
    numbers = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
