"""The commands that a simulated shell starts or runs."""

from __future__ import annotations

from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.light_dataclass import dataclass

__all__ = ["InvokedCommand", "StartedCommand"]


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A program that the script starts: its words, its environment, where it is written, and whether that is certain.

    `folder` is its working directory, None where it is unknown. `is_certain` is False in a branch that may not be taken.
    """

    argv: tuple[Value, ...]
    environ: dict[str, Value]
    folder: str | None
    origin: Origin
    is_certain: bool = True
    is_background: bool = False
    is_left: bool = False
    """A subshell started it in the background and ended without waiting for it: no other shell can wait for it."""
    stdin: Value | None = None
    private: frozenset[str] = frozenset()
    """Variables that the shell has set and that the program does not get."""
    order: int = 0
    """How many commands the shell had run before."""


@dataclass(frozen=True, slots=True)
class InvokedCommand:
    """A command that a shell runs: a program, a builtin, or a function."""

    words: tuple[Value, ...]
    origin: Origin
    is_certain: bool
    is_background: bool
