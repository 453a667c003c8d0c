"""Judging training scripts: which, and one after the other or in two processes."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpdoctor.app.progress import reporting
from ddpdoctor.app.request import Request, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.script_judging import FILE_SECONDS, JudgedScript, ScriptJudging, judge_script
from ddpdoctor.collectors.script import Scripts, ScriptText, find, read, with_modules
from ddpdoctor.engine import Outcome, extended
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Report
from ddpdoctor.render.words import counted
from ddpdoctor.rules import Rule, load

if TYPE_CHECKING:
    from multiprocessing.pool import Pool
    from multiprocessing.process import BaseProcess

__all__ = ["AREA", "ScriptOutcomes", "judge_scripts", "named_by", "with_scripts"]

AREA = "script"
PROCESSES = 2
MANY = 40
"""Files from which on a second process is worth its start."""
CHUNK = 4
COLLECT_AFTER = 96
CHUNKS_PER_PROCESS = 24
"""After so many chunks a process gives its memory back: what it remembers of earlier files helps little with later ones."""
LOOK_SECONDS = 1.0
"""How often the processes that judge are looked at."""
MOST_NAMED = 1
KILLED = "the process that judged them was killed (out of memory?)"


@dataclass(slots=True)
class ScriptOutcomes:
    """The outcomes of all scripts, the rules that judged them, and what ddpdoctor itself could not do."""

    rules: tuple[Rule, ...] = ()
    failures: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """The paths that are to be judged and were not yet."""
    _judged: dict[str, Outcome] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many scripts were judged."""
        return len(self._judged)

    @property
    def outcomes(self) -> list[Outcome]:
        """What the rules said, in the order of the paths: they are judged side by side."""
        return [outcome for _, outcome in sorted(self._judged.items())]

    def add(self, judged: JudgedScript) -> None:
        """One more script is judged."""
        self.waiting.remove(judged.path)
        self._judged[judged.path] = judged.outcome
        self.failures += [] if judged.failure is None else [judged.failure]

    def left(self) -> str:
        """What was not judged: a file by its name, more by their number and the first ones."""
        if len(self.waiting) == 1:
            return self.waiting[0]
        named = ", ".join(self.waiting[:MOST_NAMED]) + (", …" if len(self.waiting) > MOST_NAMED else "")
        return f"{len(self.waiting)} of {len(self.waiting) + self.done} scripts ({named})" if named else "scripts"

    def added_to(self, report: Report) -> Report:
        """The report extended by these outcomes."""
        return extended(report, self.outcomes, self.rules, tuple(self.failures))


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


def with_scripts(
    report: Report, paths: Sequence[str], lines: Iterable[LaunchLine], known: Facts, request: Request
) -> Report:
    """The report with what is found in training scripts: those in `paths`, and those that the lines start.

    Ctrl-C ends the judging: the report then has what was found until then, and says what was not judged.
    """
    judging = ScriptOutcomes()
    try:
        _judge_scripts(judging, paths, lines, known, request)
    except KeyboardInterrupt:
        judging.failures.append(f"{judging.left()} not judged: interrupted")
        report = replace(report, is_interrupted=True)
    return judging.added_to(report)


def judge_scripts(paths: Sequence[str], lines: Iterable[LaunchLine], known: Facts, request: Request) -> ScriptOutcomes:
    """What is wrong in these scripts, in folders of them, and in the scripts that the lines start.

    Args:
        known: the facts that scripts are judged with; those of a launch line take the place of its `launch`.
    """
    judging = ScriptOutcomes()
    _judge_scripts(judging, paths, lines, known, request)
    return judging


def _judge_scripts(
    judging: ScriptOutcomes, paths: Sequence[str], lines: Iterable[LaunchLine], known: Facts, request: Request
) -> None:
    """Add to `judging` what is found, as it is found."""
    started = named_by(lines)
    judging.rules = rules_for(request, (AREA,))
    with reporting(request.listener) as progress:
        progress.step("looking for scripts")
        found = find([*paths, *map(_short, started)])
        by_path = {os.path.realpath(path): starts for path, starts in started.items()}
        judging.failures += found.failures
        say = progress.phase if len(found.paths) >= MANY else progress.step
        say(f"reading {counted(len(found.paths), 'script')}")
        texts, unread = _texts(found, {*by_path}, request)
        judging.failures += unread
        judging.waiting = [each.source.path for each in texts]
        left_out = {each.code for each in load((AREA,))} - {each.code for each in judging.rules}
        beside = with_modules([each.source for each in texts])
        end = time.monotonic() + seconds_left(request, math.inf)
        plan = ScriptJudging(judging.rules, known, by_path, beside, frozenset(left_out), end)
        say(f"judging {counted(len(texts), 'script')}")
        for each in _all(texts, plan, request):
            judging.add(each)
            progress.step(f"judging scripts: {judging.done} done, {len(texts) - judging.done} left")
    if judging.done < len(texts):
        why = "--timeout ran out" if seconds_left(request, math.inf) <= 0 else KILLED
        judging.failures.append(f"{judging.left()} not judged: {why}")


def _texts(found: Scripts, started: set[str], request: Request) -> tuple[list[ScriptText], list[str]]:
    """What is to be judged, and what could not be read. Of a folder, files that do not concern training are passed over."""
    texts = []
    failures = []
    for at, path in enumerate(found.paths):
        if seconds_left(request, math.inf) <= 0:
            failures.append(f"{len(found.paths) - at} of {len(found.paths)} scripts not read: --timeout ran out")
            break
        try:
            text = read(path)
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")
            continue
        if text.concerns or path in found.given or os.path.realpath(path) in started:
            texts.append(text)
    return texts, failures


def _all(texts: list[ScriptText], plan: ScriptJudging, request: Request) -> Iterator[JudgedScript]:
    """Every file that can be judged before `--timeout` runs out."""
    global _plan, _waiting
    _plan, _waiting = plan, texts
    if len(texts) < MANY or (os.cpu_count() or 1) < PROCESSES:
        for at in range(len(texts)):
            if seconds_left(request, math.inf) <= 0:
                return
            yield _judge(at)
        return
    import multiprocessing

    context = multiprocessing.get_context("fork")  # the rules are loaded and the texts are read already
    others = set(multiprocessing.active_children())
    with context.Pool(PROCESSES, initializer=_alone, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        yield from _collected(pool, others, len(texts), request)


_plan: ScriptJudging
_waiting: list[ScriptText]
"""What this process judges, and with what: a forked process finds it where its parent put it."""


def _collected(pool: Pool, others: set[BaseProcess], count: int, request: Request) -> Iterator[JudgedScript]:
    """What the pool judges, as it comes. A worker that is killed (for its memory) takes one chunk of files with it."""
    from multiprocessing import TimeoutError as Late
    from multiprocessing import active_children

    chunks = [range(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)]
    results = pool.imap_unordered(_judge_all, chunks)
    workers = set(active_children()) - others
    done, last = 0, time.monotonic()
    while done < len(chunks):
        try:
            yield from results.next(timeout=min(LOOK_SECONDS, max(0.01, seconds_left(request, math.inf))))
            done, last = done + 1, time.monotonic()
        except Late:
            workers |= set(active_children()) - others
            lost = sum(worker.exitcode not in (None, 0) for worker in workers)
            is_stuck = time.monotonic() - last > CHUNK * FILE_SECONDS * PROCESSES
            if seconds_left(request, math.inf) <= 0 or (lost and (done + lost >= len(chunks) or is_stuck)):
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
