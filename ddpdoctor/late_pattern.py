"""Regular expressions that are compiled when they are first used.

Compiling the expressions of a module when it is imported takes 0.1 ms to 12 ms, and most runs use few of them.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

__all__ = ["LatePattern", "pattern"]


class LatePattern:
    """Has the attributes of `re.Pattern`. It is not a Pattern itself: `re.sub(pattern, …)` refuses it, `pattern.sub(…)` works."""

    def __init__(self, expression: str, flags: int) -> None:
        self._expression = expression
        self._flags = flags

    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, compiled."""
        return re.compile(self._expression, self._flags)

    def __getattr__(self, name: str) -> Any:
        """Called once for each attribute: the next time the instance has it itself."""
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.compiled, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    pattern = re.compile
else:

    def pattern(expression: str, flags: int = 0) -> LatePattern:
        """`re.compile`, later. An error in the expression shows when it is first used."""
        return LatePattern(expression, flags)
