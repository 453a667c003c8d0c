"""What builtins, conditions and imagined machines know of the shell that they serve, and the shell of its machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ddpdoctor.launch.evaluator.expansion import Expander
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.launch.evaluator.variables import Variables

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["MachineView", "RunningShell"]


class MachineView(Protocol):
    """The imagined machine under a shell: what programs print, what files hold."""

    def output(self, argv: Sequence[Value], stdin: Value | None, folder: str | None) -> tuple[Value, int | None] | None:
        """What a program prints and its exit status; None for a program that is not known: it is started."""

    def read_file(self, path: str, folder: str | None) -> str | None:
        """The text of a file that is there; None where it cannot be read."""

    def write_file(self, path: str, folder: str | None, content: Value, *, adds: bool) -> None:
        """Keep what a command writes to a file, for whoever reads it later."""

    def exists(self, path: str, folder: str | None, test: str) -> bool | None:
        """The answer of `test -e path` and the like; None where it is not known."""

    def random(self) -> Value:
        """The next `$RANDOM`."""


class RunningShell(Protocol):
    """A shell while it executes."""

    machine: MachineView
    variables: Variables
    positional: list[Value]
    folder: str | None
    status: int | None
    output: list[Value]
    stdin: Value | None
    has_started: bool
    options: set[str]
    doubted: set[str]
    """Variables of which it is not known whether they are exported."""
    functions: dict[str, Any]
    started: list[Any]
    awaited: int
    """How many of the commands that it started it has waited for."""

    def expander(self) -> Expander:
        """The expander of words of the current text."""

    def text_of(self, node: Node) -> str:
        """The text of a node."""

    def start_of(self, node: Node) -> int:
        """Where a node begins in the current text."""

    def run(self, text: str, origin: Callable[[int, int], Origin]) -> int | None:
        """Execute a text in this shell."""

    def invoke(self, words: Sequence[Value], origin: Origin) -> None:
        """Run a command by its words."""

    def leave(self, kind: str, levels: int = 1, status: int | None = 0) -> NoReturn:
        """`exit`, `return`, `break`, `continue`."""
