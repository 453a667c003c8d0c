"""Judging training scripts: which, and one after the other or in two processes."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpdoctor.app.progress import reporting
from ddpdoctor.app.request import Request, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.script_judging import JudgedScript, ScriptJudging, judge_script
from ddpdoctor.collectors.script import Scripts, ScriptText, find, read, with_modules
from ddpdoctor.engine import Outcome, extended
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.script import SourceProblem
from ddpdoctor.findings import Report
from ddpdoctor.rules import Rule, load
from ddpdoctor.scripts.syntax.parsing import parse

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

__all__ = ["AREA", "ScriptOutcomes", "judge_scripts", "named_by"]

AREA = "script"
PROCESSES = 2
MANY = 40
"""Files from which on a second process is worth its start."""
MOST_PARSED = 100
"""Files without distributed training whose syntax is looked at, to say how many have errors."""
CHUNK = 4
COLLECT_AFTER = 96


@dataclass(slots=True)
class ScriptOutcomes:
    """The outcomes of all scripts, the rules that judged them, and what ddpdoctor itself could not do.

    `inputs` are the scripts as the report tells of them; `passed_over` the files of folders that do not concern training,
    `broken` those of them that are not Python (the first MOST_PARSED are parsed).
    """

    outcomes: list[Outcome] = field(default_factory=list)
    rules: tuple[Rule, ...] = ()
    failures: list[str] = field(default_factory=list)
    inputs: list[ExaminedInput] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def added_to(self, report: Report) -> Report:
        """The report extended by these outcomes."""
        report = extended(report, self.outcomes, self.rules, tuple(self.failures))
        return replace(report, inputs=(*report.inputs, *self.inputs))


def named_by(lines: Iterable[LaunchLine]) -> dict[str, tuple[LaunchLine, ...]]:
    """The Python scripts that launch lines start, with the lines of each."""
    found: dict[str, tuple[LaunchLine, ...]] = {}
    for line in lines:
        script = line.script
        if script is not None and script.exists and os.path.isfile(script.path) and script.is_python is not False:
            found[script.path] = (*found.get(script.path, ()), line)
    return found


def _short(path: str) -> str:
    """The path as a user would type it here."""
    below = os.path.relpath(path)
    return path if below.startswith("..") else below


def judge_scripts(named: Scripts, lines: Iterable[LaunchLine], known: Facts, request: Request) -> ScriptOutcomes:
    """What is wrong in these scripts, and in those that the lines start.

    Args:
        known: the facts that scripts are judged with; those of a launch line take the place of its `launch`.
    """
    started = named_by(lines)
    given = set(named.given)
    found = find(map(_short, started), named)
    by_path = {os.path.realpath(path): starts for path, starts in started.items()}
    rules = rules_for(request, (AREA,))
    left_out = {each.code for each in load((AREA,))} - {each.code for each in rules}
    reading = ScriptOutcomes(rules=rules, failures=list(found.failures))
    with reporting(request.listener, enabled=len(found.paths) >= MANY) as progress:
        progress.phase(f"reading {len(found.paths)} scripts")
        texts = _texts(found, {*by_path}, request, reading)
        reading.inputs += [_examined(each, is_named=each.source.path in given) for each in texts]
        beside = with_modules([each.source for each in texts])
        end = time.monotonic() + seconds_left(request)
        plan = ScriptJudging(rules, known, by_path, beside, frozenset(left_out), end)
        progress.phase(f"judging {len(texts)} scripts")
        done = 0
        for each in _all(texts, plan, request):
            done += 1
            progress.step(f"judging {len(texts)} scripts: {done} done")
            reading.outcomes.append(each.outcome)
            reading.failures += [] if each.failure is None else [each.failure]
    if done < len(texts):
        reading.failures.append(f"judge {len(texts) - done} of {len(texts)} scripts: --timeout ran out")
    return reading


def _texts(found: Scripts, started: set[str], request: Request, reading: ScriptOutcomes) -> list[ScriptText]:
    """What is to be judged. Of a folder, files that do not concern training are passed over."""
    texts = []
    for at, path in enumerate(found.paths):
        if seconds_left(request) <= 0:
            left = f"read {len(found.paths) - at} of {len(found.paths)} scripts: --timeout ran out"
            reading.failures.append(left)
            break
        try:
            text = read(path)
        except OSError as error:
            reading.failures.append(f"{path}: not read: {error.strerror}")
            reason = (error.strerror or "not readable").lower()
            is_named = path in found.given
            reading.inputs.append(
                ExaminedInput(path, _kind(path), is_understood=False, reason=reason, is_named=is_named)
            )
            continue
        if text.concerns or path in found.given or os.path.realpath(path) in started:
            texts.append(text)
        elif len(reading.passed_over) < MOST_PARSED and _is_broken(text):
            reading.broken.append(path)
        else:
            reading.passed_over.append(path)
    return texts


def _is_broken(text: ScriptText) -> bool:
    return text.source.problem is not None or isinstance(parse(text.source.text), SourceProblem)


def _kind(path: str) -> str:
    return "notebook" if path.endswith(".ipynb") else "script"


def _examined(text: ScriptText, *, is_named: bool) -> ExaminedInput:
    """A script as the report tells of it."""
    source, raw = text.source, text.source.text
    reason = source.problem.message if source.problem is not None and not raw else None
    if reason is None and not raw.strip():
        reason = "empty" if text.raw is None else "it has no cell with Python"
    lines = raw.count("\n") + (not raw.endswith("\n")) if raw else None
    return ExaminedInput(
        source.path, _kind(source.path), is_understood=reason is None, lines=lines, reason=reason, is_named=is_named
    )


def _all(texts: list[ScriptText], plan: ScriptJudging, request: Request) -> Iterator[JudgedScript]:
    """Every file that can be judged before `--timeout` runs out, in order."""
    global _plan, _waiting
    _plan, _waiting = plan, texts
    if len(texts) < MANY or (os.cpu_count() or 1) < PROCESSES:
        for at in range(len(texts)):
            if seconds_left(request) <= 0:
                return
            yield _judge(at)
        return
    import multiprocessing

    context = multiprocessing.get_context("fork")  # the rules are loaded and the texts are read already
    with context.Pool(PROCESSES, initializer=_alone) as pool:
        yield from _collected(pool, len(texts), request)


_plan: ScriptJudging
_waiting: list[ScriptText]
"""What this process judges, and with what: a forked process finds it where its parent put it."""


def _collected(pool: Pool, count: int, request: Request) -> Iterator[JudgedScript]:
    from multiprocessing import TimeoutError as Late

    results = pool.imap(_judge_all, [range(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)])
    for _ in range(0, count, CHUNK):
        try:
            yield from results.next(timeout=max(0.01, seconds_left(request)))
        except Late:
            return


def _judge_all(numbers: range) -> list[JudgedScript]:
    """Judge some files. What refers to itself is collected after each; old modules, which take longer, after some."""
    found = []
    for number in numbers:
        found.append(_judge(number))
        gc.collect(1)
    if numbers.start % COLLECT_AFTER == 0:
        gc.collect()
    return found


def _alone() -> None:
    """Set up a process of the pool: its parent handles Ctrl-C and ends it, and it collects its garbage itself."""
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _judge(number: int) -> JudgedScript:
    return judge_script(_waiting[number], _plan)
