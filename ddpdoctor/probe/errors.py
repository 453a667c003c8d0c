"""The worker's own exceptions."""

from __future__ import annotations

__all__ = ["ShadowedModuleError", "WrongValue"]


class ShadowedModuleError(ImportError):
    """torch cannot be imported, because `file` shadows a module."""

    def __init__(self, words: str, module: str, file: str) -> None:
        super().__init__(f"{words}; {file} shadows the module {module}: rename it")
        self.file = file


class WrongValue(Exception):
    """A collective returned wrong numbers."""

    def __init__(self, collective: str, index: int, value: str, expected: str) -> None:
        super().__init__(f"{collective} returned {value} instead of {expected} at element {index}")
        self.value = value
        self.expected = expected
        self.times = ""
        """In how many of how many repetitions, "" without repetitions."""

        self.culprit: int | None = None
        """The rank that contributes wrong numbers, if all ranks got wrong results and only one rank explains them."""

    def __str__(self) -> str:
        words = f"{super().__str__()}, in {self.times} repetitions" if self.times else super().__str__()
        return words if self.culprit is None else f"{words}; only groups with rank {self.culprit} get wrong sums"
