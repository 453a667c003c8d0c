"""What one evaluation may still execute, and what it left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from ddpdoctor.launch.evaluator.values import Origin
from ddpdoctor.light_dataclass import dataclass

__all__ = ["DEEPEST", "MOST_COMMANDS", "MOST_OUTPUT", "MOST_ROUNDS", "MOST_STATEMENTS", "Budget"]

MOST_STATEMENTS = 20_000
MOST_ROUNDS = 1_100
"""Repetitions of one loop whose condition is known."""
DEEPEST = 48
"""Nested statements, functions and shells."""
MOST_OUTPUT = 1 << 20
"""Characters that one command substitution may give."""
MOST_COMMANDS = 20_000
_MOST_LEFT_OUT = 200


@dataclass(slots=True)
class Budget:
    """What one evaluation may still do; shared by all shells of it. `left_out` says where it stopped, and why."""

    statements: int = MOST_STATEMENTS
    left_out: list[tuple[Origin, str]] = field(default_factory=list)

    def spend(self, origin: Callable[[], Origin]) -> bool:
        """Whether one more statement may run."""
        self.statements -= 1
        if self.statements == 0:
            self.leave_out(origin(), f"only the first {MOST_STATEMENTS} statements are executed")
        return self.statements > 0

    def leave_out(self, origin: Origin, reason: str) -> None:
        """Note that what begins there is not executed."""
        if len(self.left_out) < _MOST_LEFT_OUT:
            self.left_out.append((origin, reason))

    def described(self, file: str, text: str) -> list[str]:
        """What was left out of a file, as `FILE:LINE: reason`."""
        return list(
            dict.fromkeys(
                f"{file}:{text.count(chr(10), 0, origin.start) + 1}: {reason}"
                if origin.file == file
                else f"{origin.file or file}: {reason}"
                for origin, reason in self.left_out
            )
        )
