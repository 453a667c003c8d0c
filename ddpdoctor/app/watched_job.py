"""`run --watch`: the ranks' calls of the real job, compared for its first steps; a difference is told while the job waits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from ddpdoctor.engine import examine
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding
from ddpdoctor.rehearsal.watcher import JobWatcher
from ddpdoctor.rules import load
from ddpdoctor.rules.views import rehearsal_rules
from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.summary import Circumstances, files_named, summary
from ddpdoctor.wording import counted

__all__ = ["WATCHED_STEPS", "ended", "watcher"]

WATCHED_STEPS = 20
"""Optimizer steps after which the watch switches itself off."""
LARGEST_SOURCE_BYTES = 4 << 20


def watcher(tell: Callable[[Finding], None], steps: int = WATCHED_STEPS) -> JobWatcher:
    """A watcher that tells of the first difference between the ranks on this node."""
    rules = rehearsal_rules(load(("script", "probe")))

    def told(comparison: Comparison) -> None:
        texts = {path: text for path in files_named(comparison) if (text := _text(path)) is not None}
        facts = Facts(
            schema=SCHEMA,
            collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            hostname=socket.gethostname().partition(".")[0],
            rehearsal=summary(comparison, texts, Circumstances(folder=os.getcwd())),
        )
        for finding in examine(facts, rules, command="run", started=time.monotonic()).findings[:1]:
            tell(finding)

    return JobWatcher(steps, told)


def _text(path: str) -> str | None:
    try:
        if os.path.getsize(path) > LARGEST_SOURCE_BYTES:
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None  # removed since it ran


def ended(watch: JobWatcher) -> str:
    """What was compared, in one line."""
    ranks = watch.comparison.ranks
    if not ranks:
        return "watch: no rank was seen (no process of the job used torch.distributed with this Python path)"
    calls = min(len(track.calls) for track in ranks)
    steps = min(track.steps for track in ranks)
    why = next((f"; ended before {reason}" for reason in watch.reasons if reason), "")
    result = "reported above" if watch.has_told else "no difference"
    return (
        f"watch: {counted(len(ranks), 'rank')}, {counted(steps, 'step')}, {counted(calls, 'call')} each: {result}{why}"
    )
