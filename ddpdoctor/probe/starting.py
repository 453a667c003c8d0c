"""Starting workers: one process a rank, or one process that forks a worker for each rank of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ddpdoctor.probe.child import Child
from ddpdoctor.probe.place import Place

__all__ = ["spawn", "spawn_forked"]


def worker_environ() -> dict[str, str]:
    """The rank's environment for its worker: NCCL's warnings are wanted, and on its output."""
    environ = {name: value for name, value in os.environ.items() if name != "NCCL_DEBUG_FILE"}
    environ.setdefault("NCCL_DEBUG", "WARN")
    return environ


def spawn(place: Place) -> Child:
    """Start the worker of one rank: its import of torch runs while the supervisor finds the others."""
    return _start("ddpdoctor.probe.worker", [place])[0]


def spawn_forked(places: Sequence[Place]) -> list[Child]:
    """Start the workers of several ranks as forks of one process, which imports torch once for all of them."""
    return _start("ddpdoctor.probe.template", places)


def _start(module: str, places: Sequence[Place]) -> list[Child]:
    """Start one process with pipes for each of these ranks."""
    pipes = [(os.pipe(), os.pipe(), os.pipe()) for _ in places]
    theirs = [(messages[1], control[0], output[1]) for messages, control, output in pipes]
    words = [",".join(map(str, fds)) for fds in theirs]
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs[0][2],
        stderr=theirs[0][2],
        env=worker_environ(),
        pass_fds=[fd for fds in theirs for fd in fds],
        start_new_session=True,
    )
    for fds in theirs:
        for fd in fds:
            os.close(fd)
    children = []
    for place, (messages, control, output) in zip(places, pipes, strict=True):
        child = Child(place, messages[0], control[1], output[0])
        child.process, child.pid = process, process.pid
        children.append(child)
    return children
