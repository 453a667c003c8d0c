"""Collectors: the only code that touches a machine. One module a word; each gathers its section, all under deadlines."""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ddpdoctor.collectors.machine import Machine
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.record import SCHEMA, Facts

__all__ = ["SECONDS", "Missing", "collect"]

SECONDS = {"environ": 2.0, "host": 5.0, "net": 8.0, "gpu": 10.0, "topo": 10.0, "versions": 5.0}
"""How long each section may take before it becomes a gap."""


class Missing(Exception):
    """Raised by a collector that cannot give its section at all."""

    def __init__(self, reason: str, why: Why = Why.UNANSWERED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.why = why


def collect(machine: Machine, sections: Iterable[str] = tuple(SECONDS)) -> Facts:
    """Gather these sections side by side. A collector that is late, fails or has nothing becomes a gap, never a hang."""
    answers: dict[str, object] = {}
    gaps: dict[str, Gap] = {}
    threads = {}
    for name in sections:
        ask = _asker(name)
        threads[name] = threading.Thread(target=_ask, args=(name, ask, machine, answers, gaps), daemon=True)
        threads[name].start()
    for name, thread in threads.items():
        limit = machine.deadline.cut(SECONDS[name])
        thread.join(limit.left)
        if name not in answers and name not in gaps:
            gaps[name] = Gap(name, f"{name}: no answer within {SECONDS[name]:.0f} s")
    return Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hostname=socket.gethostname().partition(".")[0],
        gaps=tuple(gaps.values()),
        **{name: answers[name] for name in threads if name in answers},  # type: ignore[arg-type]
    )


def _asker(name: str) -> Callable[[Machine], Any]:
    module = importlib.import_module(f"ddpdoctor.collectors.{name}")
    ask: Callable[[Machine], Any] = module.collect
    return ask


def _ask(
    name: str,
    ask: Callable[[Machine], Any],
    machine: Machine,
    answers: dict[str, object],
    gaps: dict[str, Gap],
) -> None:
    try:
        answers[name] = ask(machine)
    except Missing as missing:
        gaps[name] = Gap(name, missing.reason, missing.why)
    except Exception as error:  # a collector's bug costs its section and is shown, never the other sections
        gaps[name] = Gap(name, f"{name}: the collector failed: {type(error).__name__}: {error}")
