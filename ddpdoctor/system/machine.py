"""The machine that collectors read: its file tree, its environment, and the time left.

Tests pass their own tree and environment; only `this_machine` reads `os.environ`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Deadline", "Machine", "Root", "this_machine"]

MAX_TEXT_BYTES = 4 << 20
PIECE_BYTES = 64 << 10

T = TypeVar("T")


class Deadline:
    """A point in time after which nothing may wait. `cut` returns an earlier one."""

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0.0 when it has passed."""
        return max(0.0, self._end - time.monotonic())

    def cut(self, seconds: float) -> Deadline:
        """A deadline in `seconds`, or this one if it is earlier."""
        return Deadline(min(seconds, self.left))


@dataclass(frozen=True, slots=True)
class Root:
    """The file tree: "/" of this machine, or a captured tree in a test. Paths are absolute."""

    path: str = "/"

    @property
    def is_real(self) -> bool:
        """This machine itself, not a captured tree."""
        return self.path == "/"

    def at(self, path: str) -> str:
        """The real path of `path` below this root."""
        return path if self.is_real else os.path.join(self.path, path.lstrip("/"))

    def text(self, path: str) -> str:
        """The text of a file, undecodable bytes replaced, at most 4 MiB.

        Raises:
            OSError: it cannot be read.
        """
        pieces: list[bytes] = []
        with open(self.at(path), "rb") as file:
            # In pieces: the kernel refuses to read a file of /proc/sys with a buffer of 4 MiB (ENOMEM).
            while len(pieces) < MAX_TEXT_BYTES // PIECE_BYTES and (piece := file.read(PIECE_BYTES)):
                pieces.append(piece)
        return b"".join(pieces).decode("utf-8", "replace")

    def line(self, path: str) -> str | None:
        """The text of a small file without surrounding space, None when it cannot be read."""
        try:
            return self.text(path).strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in a small file, None if it cannot be read or is not an integer."""
        line = self.line(path)
        try:
            return None if line is None else int(line)
        except ValueError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted, empty when it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.at(path))))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        return os.path.exists(self.at(path))

    def real(self, path: str) -> str:
        """The resolved path, as seen below this root."""
        resolved = os.path.realpath(self.at(path))
        base = os.path.realpath(self.path)
        return resolved if self.is_real else "/" + os.path.relpath(resolved, base)


@dataclass(frozen=True, slots=True)
class Machine:
    """The input of a collector: file tree, environment, deadline, and the Python that the job would use."""

    root: Root = field(default_factory=Root)
    environ: Mapping[str, str] = field(default_factory=dict)
    deadline: Deadline = field(default_factory=lambda: Deadline(30.0))
    python: str = sys.executable
    _answers: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def once(self, name: str, ask: Callable[[], T]) -> T:
        """The result of `ask`, which is called once for all collectors of this machine that need `name`."""
        with self._asking:
            if name not in self._answers:
                self._answers[name] = ask()
            answer: T = self._answers[name]
            return answer


def this_machine(seconds: float = 30.0) -> Machine:
    """The machine that this process runs on, with its environment."""
    return Machine(environ=dict(os.environ), deadline=Deadline(seconds))
