"""Collectors: the only code that reads the machine. One module per section, each with a time limit."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ddpdoctor.collectors.sources import with_gaps_of_sources
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.system.machine import Deadline, Machine
from ddpdoctor.system.timeouts import NoThreadError, start_thread

if TYPE_CHECKING:
    from ddpdoctor.facts.record import Facts

__all__ = ["SECONDS", "Missing", "collect"]

SECONDS = {"environ": 2.0, "host": 5.0, "net": 8.0, "gpu": 10.0, "topo": 10.0, "versions": 5.0}
"""How long each section may take before it becomes a gap."""


class Missing(Exception):
    """Raised by a collector that cannot collect its section at all."""

    def __init__(self, reason: str, why: Why = Why.UNANSWERED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.why = why


def collect(machine: Machine, sections: Iterable[str] = tuple(SECONDS)) -> Facts:
    """Collect these sections in parallel. A collector that times out, fails or has no data becomes a gap, never a hang."""
    from ddpdoctor.facts.record import SCHEMA, Facts  # imports the types of all sections: not needed to start a probe

    answers: dict[str, object] = {}
    gaps: dict[str, Gap] = {}
    threads: dict[str, tuple[threading.Thread, Deadline, float]] = {}
    for name, ask in _askers(tuple(sections), gaps).items():
        seconds = min(SECONDS[name], machine.deadline.left)
        try:
            thread = start_thread(functools.partial(_ask, name, ask, machine, answers, gaps))
        except NoThreadError as refused:
            gaps[name] = Gap(name, f"{name}: {refused.strerror}")
        else:
            threads[name] = thread, machine.deadline.cut(seconds), seconds
    for name, (thread, limit, seconds) in threads.items():
        thread.join(limit.left)
        if name not in answers and name not in gaps:
            gaps[name] = Gap(name, f"{name}: timed out after {seconds:.1f} s")
    return Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hostname=os.uname().nodename.partition(".")[0],
        gaps=tuple(gaps.values()),
        **{name: answers[name] for name in threads if name in answers},  # type: ignore[arg-type]
    )


def _askers(sections: tuple[str, ...], gaps: dict[str, Gap]) -> dict[str, Callable[[Machine], Any]]:
    """Each section's collector, imported before the first thread starts and uses file descriptors."""
    if not sys.platform.startswith("linux"):
        gaps |= {n: Gap(n, "not Linux", Why.NOT_HERE) for n in sections}
        return {}
    askers = {}
    for name in sections:
        try:
            askers[name] = importlib.import_module(f"ddpdoctor.collectors.{name}").collect
        except (ImportError, OSError) as error:  # a broken installation, or out of file descriptors
            gaps[name] = Gap(name, f"{name}: the collector could not be imported: {error}")
    return askers


def _ask(
    name: str,
    ask: Callable[[Machine], Any],
    machine: Machine,
    answers: dict[str, object],
    gaps: dict[str, Gap],
) -> None:
    try:
        answers[name] = with_gaps_of_sources(machine.root, name, ask(machine))
    except Missing as missing:
        gaps[name] = Gap(name, missing.reason, missing.why)
    except NoThreadError as refused:
        gaps[name] = Gap(name, f"{name}: {refused.strerror}")
    except Exception as error:  # a bug in a collector costs its section only, and is shown
        gaps[name] = Gap(name, f"{name}: the collector failed: {type(error).__name__}: {error}")
