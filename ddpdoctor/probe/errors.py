"""What the worker raises of its own accord."""

from __future__ import annotations

__all__ = ["WrongValue"]


class WrongValue(Exception):
    """A collective returned other numbers than it must."""

    def __init__(self, collective: str, index: int, value: str, expected: str) -> None:
        super().__init__(f"{collective} returned {value} at element {index} where {expected} was due")
        self.value = value
        self.expected = expected
