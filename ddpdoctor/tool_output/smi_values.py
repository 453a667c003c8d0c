"""How nvidia-smi writes values: units, words, and the names of NVML errors where a query failed."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddpdoctor.tool_output.record import Card, Said, integer

__all__ = [
    "Reader",
    "absence_of",
    "count",
    "flag",
    "mebibytes",
    "milliwatts",
    "nanoseconds",
    "put",
    "text_of",
    "word_of",
]

Reader = Callable[[str], object]
"""Makes the value of a field from its text; None if the text is not a value."""

_ABSENT = {
    "n/a": "NOT_SUPPORTED",
    "[n/a]": "NOT_SUPPORTED",
    "not supported": "NOT_SUPPORTED",
    "[not supported]": "NOT_SUPPORTED",
    "not available": "NOT_SUPPORTED",
    "requested functionality has been deprecated": "DEPRECATED",
    "insufficient permissions": "NO_PERMISSION",
    "unknown error": "UNKNOWN",
    "[unknown error]": "UNKNOWN",
    "unknown": "UNKNOWN",
    "err!": "UNKNOWN",
    "gpu is lost": "GPU_IS_LOST",
    "[gpu is lost]": "GPU_IS_LOST",
    "gpu requires reset": "RESET_REQUIRED",
    "[gpu requires reset]": "RESET_REQUIRED",
}
"""The words that nvidia-smi prints instead of a value, and the NVML code that each stands for."""
_WORDS = {
    "enabled": 1,
    "disabled": 0,
    "on": 1,
    "off": 0,
    "yes": 1,
    "no": 0,
    "active": 1,
    "not active": 0,
    "true": 1,
    "false": 0,
}


def absence_of(text: str) -> str | None:
    """The NVML code that the text stands for; None if it is a value."""
    return _ABSENT.get(text.strip().lower())


def put(card: Card, name: str, read: Reader, text: str, line: int) -> None:
    """Record a device field from its text: a value, or the code for a value that nvidia-smi could not get."""
    code = absence_of(text)
    if code is not None:
        card.absent.setdefault(name, code)
        return
    value = read(text)
    if value is not None:
        card.device.setdefault(name, Said(value, line))


def text_of(text: str) -> str | None:
    """The text itself."""
    return text.strip() or None


def count(text: str) -> int | None:
    """A count or a number with a unit: `16x`, `85 C`, `1980 MHz`, `P0`."""
    return integer(text.strip().removeprefix("P"))


def flag(text: str) -> int | None:
    """`Enabled`, `Yes`, `Active` and their opposites."""
    return _WORDS.get(text.strip().lower())


def mebibytes(text: str) -> int | None:
    """`81920 MiB` in bytes."""
    number = integer(text)
    return None if number is None or number < 0 else number << 20


def milliwatts(text: str) -> int | None:
    """`700.00 W` in mW."""
    matched = re.match(r"\s*(\d{1,6})(?:\.(\d{1,3}))?", text)
    return None if matched is None else int(matched[1]) * 1000 + int((matched[2] or "0").ljust(3, "0"))


def nanoseconds(text: str) -> int | None:
    """`1234 us` in ns."""
    number = integer(text)
    return None if number is None or number < 0 else number * 1000


def word_of(table: dict[str, int]) -> Reader:
    """A reader of words that stand for numbers."""
    return lambda text: table.get(text.strip().lower())
