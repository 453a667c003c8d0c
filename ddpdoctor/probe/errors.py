"""What the worker raises of its own accord."""

from __future__ import annotations

__all__ = ["ShadowedModuleError", "WrongValue"]


class ShadowedModuleError(ImportError):
    """torch cannot be imported, because `file` shadows a module."""

    def __init__(self, words: str, module: str, file: str) -> None:
        super().__init__(f"{words}; {file} shadows the module {module}: rename it")
        self.file = file


class WrongValue(Exception):
    """A collective returned other numbers than it must."""

    def __init__(self, collective: str, index: int, value: str, expected: str) -> None:
        super().__init__(f"{collective} returned {value} instead of {expected} at element {index}")
        self.value = value
        self.expected = expected
        self.times = ""
        """In how many of how many repetitions, "" where there were none."""

        self.culprit: int | None = None
        """The rank that puts wrong numbers in, where all ranks got wrong ones out and only one of them can be to blame."""

    def __str__(self) -> str:
        words = f"{super().__str__()}, in {self.times} repetitions" if self.times else super().__str__()
        return words if self.culprit is None else f"{words}; only groups with rank {self.culprit} get wrong sums"
