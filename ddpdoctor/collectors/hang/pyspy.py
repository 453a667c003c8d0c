"""Gets the Python stacks of processes from py-spy, if installed, without stopping them (`--nonblocking`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping

from ddpdoctor.dumps.stacks import stacks_in
from ddpdoctor.facts.hang import StackFrame
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.timeouts import in_threads

__all__ = ["find_pyspy", "frames_of"]

SECONDS = 5.0
AT_ONCE = 8


def find_pyspy(environ: Mapping[str, str]) -> str | None:
    """The program: next to this Python, or on PATH."""
    local = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return local if os.access(local, os.X_OK) else shutil.which("py-spy", path=environ.get("PATH"))


def frames_of(
    program: str, pids: Iterable[int], seconds: float = SECONDS
) -> tuple[dict[int, tuple[StackFrame, ...]], list[str]]:
    """The main thread's frames of each process, innermost first, and the problems with the others."""
    frames: dict[int, tuple[StackFrame, ...]] = {}
    problems: list[str] = []
    left = list(pids)

    def work() -> None:
        while left:
            try:
                pid = left.pop()
            except IndexError:
                return  # another thread took the last one
            try:
                frames[pid] = _ask(program, pid, seconds)
            except (LateError, OSError, ValueError) as error:
                problems.append(f"pid {pid}: {error}"[:200])

    in_threads([work] * min(AT_ONCE, len(left)))
    return frames, problems


def _ask(program: str, pid: int, seconds: float) -> tuple[StackFrame, ...]:
    done = run([program, "dump", "--pid", str(pid), "--nonblocking", "--full-filenames", "--json"], seconds)
    if done.code:
        raise ValueError((done.err.decode("utf-8", "replace").strip().splitlines() or ["py-spy failed"])[0])
    stacks = stacks_in("py-spy", done.text)
    main = stacks[0].main if stacks else None
    return main.frames[:64] if main is not None else ()
