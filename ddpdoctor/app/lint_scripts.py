"""Judges training scripts: chooses them, and judges them in one process or in two."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING

from ddpdoctor.app.progress import reporting
from ddpdoctor.app.request import Request, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.script_judging import FILE_SECONDS, JudgedScript, ScriptJudging, judge_script
from ddpdoctor.collectors.script import Scripts, ScriptText, find, read, with_modules
from ddpdoctor.engine import Outcome, extended
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.script import SourceProblem
from ddpdoctor.findings import Report
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import Rule, load
from ddpdoctor.scripts.syntax.parsing import parse
from ddpdoctor.system.budget import OverBudgetError, within_budget
from ddpdoctor.system.pools import forked_pool
from ddpdoctor.wording import counted

if TYPE_CHECKING:
    from ddpdoctor.system.pools import ForkedPool

READ_SECONDS = 10.0
"""Time limit for reading one script or notebook."""

__all__ = ["AREA", "ScriptOutcomes", "judge_scripts", "named_by"]

AREA = "script"
PROCESSES = 2
MANY = 40
"""Number of files from which a second process pays off."""
MOST_PARSED = 100
"""Most files without distributed training whose syntax is checked, to count those with errors."""
CHUNK = 4
COLLECT_AFTER = 96
CHUNKS_PER_PROCESS = 24
"""Every so many files a process runs a full garbage collection: what is kept of earlier files helps little later."""
LOOK_SECONDS = 1.0
"""Seconds between two checks of the judging processes."""
MOST_NAMED = 1
KILLED = "the process that judged them was killed (out of memory?)"


@dataclass(slots=True)
class ScriptOutcomes:
    """The outcomes of all scripts, the rules that judged them, and what ddpdoctor itself could not do.

    `inputs` are the scripts as the report lists them; `passed_over` the files of folders that do not concern training,
    `broken` those among them that are not valid Python (the first MOST_PARSED are parsed).
    """

    rules: tuple[Rule, ...] = ()
    failures: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """The paths that are still to be judged."""
    inputs: list[ExaminedInput] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    _judged: dict[str, Outcome] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many scripts were judged."""
        return len(self._judged)

    @property
    def outcomes(self) -> list[Outcome]:
        """What the rules found, in the order of the paths, because files are judged in parallel."""
        return [outcome for _, outcome in sorted(self._judged.items())]

    def add(self, judged: JudgedScript) -> None:
        """One more script is judged."""
        self.waiting.remove(judged.path)
        self._judged[judged.path] = judged.outcome
        self.failures += [] if judged.failure is None else [judged.failure]

    def left(self) -> str:
        """What was not judged: one file by name, several by their number and the first names."""
        if len(self.waiting) == 1:
            return self.waiting[0]
        named = ", ".join(self.waiting[:MOST_NAMED]) + (", …" if len(self.waiting) > MOST_NAMED else "")
        return f"{len(self.waiting)} of {len(self.waiting) + self.done} scripts ({named})" if named else "scripts"

    def added_to(self, report: Report) -> Report:
        """The report extended by these outcomes."""
        report = extended(report, self.outcomes, self.rules, tuple(self.failures))
        return replace(report, inputs=(*report.inputs, *self.inputs), is_interrupted=self.is_interrupted)


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


def judge_until_interrupted(
    named: Scripts, lines: Iterable[LaunchLine], known: Facts, request: Request, *, proves_corrections: bool = False
) -> ScriptOutcomes:
    """As `judge_scripts`; Ctrl-C ends it with the findings so far and the files that were not judged.

    Args:
        proves_corrections: judge the corrected texts as well, so that safe corrections are known.
    """
    judging = ScriptOutcomes()
    try:
        _judge_scripts(judging, named, lines, known, request, proves_corrections=proves_corrections)
    except KeyboardInterrupt:
        judging.failures.append(f"{judging.left()} not judged: interrupted")
        judging.is_interrupted = True
    return judging


def judge_scripts(named: Scripts, lines: Iterable[LaunchLine], known: Facts, request: Request) -> ScriptOutcomes:
    """What is wrong in these scripts, and in those that the lines start.

    Args:
        known: the facts that scripts are judged with; those of a launch line take the place of its `launch`.
    """
    judging = ScriptOutcomes()
    _judge_scripts(judging, named, lines, known, request)
    return judging


def _judge_scripts(
    judging: ScriptOutcomes,
    named: Scripts,
    lines: Iterable[LaunchLine],
    known: Facts,
    request: Request,
    *,
    proves_corrections: bool = False,
) -> None:
    """Add to `judging` what is found, as it is found."""
    started = named_by(lines)
    given = set(named.given)
    judging.rules = rules_for(request, (AREA,))
    with reporting(request.listener) as progress:
        found = find(map(_short, started), named)
        by_path = {os.path.realpath(path): starts for path, starts in started.items()}
        judging.failures += found.failures
        say = progress.phase if len(found.paths) >= MANY else progress.step
        say(f"reading {counted(len(found.paths), 'script')}")
        texts = _texts(found, {*by_path}, request, judging)
        judging.inputs += [_examined(text, is_named=text.source.path in given) for text in texts]
        judging.waiting = [text.source.path for text in texts]
        left_out = {rule.code for rule in load((AREA,))} - {rule.code for rule in judging.rules}
        beside = with_modules([text.source for text in texts])
        end = time.monotonic() + seconds_left(request, math.inf)
        plan = ScriptJudging(judging.rules, known, by_path, beside, frozenset(left_out), end, proves_corrections)
        say(f"judging {counted(len(texts), 'script')}")
        for each in _all(texts, plan, request):
            judging.add(each)
            progress.step(f"judging scripts: {judging.done} done, {len(texts) - judging.done} left")
    if judging.done < len(texts):
        why = "--timeout ran out" if seconds_left(request, math.inf) <= 0 else KILLED
        judging.failures.append(f"{judging.left()} not judged: {why}")


def _texts(found: Scripts, started: set[str], request: Request, reading: ScriptOutcomes) -> list[ScriptText]:
    """What is to be judged. Files of folders without distributed training are left out."""
    texts = []
    for at, path in enumerate(found.paths):
        if seconds_left(request, math.inf) <= 0:
            left = f"{len(found.paths) - at} of {len(found.paths)} scripts not read: --timeout ran out"
            reading.failures.append(left)
            break
        try:
            text = within_budget(lambda path=path: read(path), READ_SECONDS)  # type: ignore[misc]
        except (OSError, OverBudgetError) as error:
            why = str(error.strerror or "not readable") if isinstance(error, OSError) else str(error)
            reading.failures.append(f"{path}: {why}")
            reason = why[:1].lower() + why[1:]
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
    """A script as the report lists it."""
    source, raw = text.source, text.source.text
    reason = source.problem.message if source.problem is not None and not raw else None
    if reason is None and not raw.strip():
        reason = "empty" if text.raw is None else "no cell with Python"
    lines = raw.count("\n") + (not raw.endswith("\n")) if raw else None
    return ExaminedInput(
        source.path, _kind(source.path), is_understood=reason is None, lines=lines, reason=reason, is_named=is_named
    )


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
    # The rules are loaded and the texts are read already. Garbage is collected explicitly.
    with forked_pool(PROCESSES, gc.disable, most_tasks=CHUNKS_PER_PROCESS) as forked:
        yield from _collected(forked, len(texts), request)


_plan: ScriptJudging
_waiting: list[ScriptText]
"""What this process judges, and with what: set before the fork, so that child processes have it."""


def _collected(forked: ForkedPool, count: int, request: Request) -> Iterator[JudgedScript]:
    """What the pool judged, in the order of completion. A worker that is killed (OOM) loses one chunk of files."""
    from multiprocessing import TimeoutError as Late

    chunks = [range(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)]
    results = forked.pool.imap_unordered(_judge_all, chunks)
    workers = forked.workers
    done, last = 0, time.monotonic()
    while done < len(chunks):
        try:
            yield from results.next(timeout=min(LOOK_SECONDS, max(0.01, seconds_left(request, math.inf))))
            done, last = done + 1, time.monotonic()
        except Late:
            workers |= forked.workers
            lost = sum(worker.exitcode not in (None, 0) for worker in workers)
            is_stuck = time.monotonic() - last > CHUNK * FILE_SECONDS * PROCESSES
            if seconds_left(request, math.inf) <= 0 or (lost and (done + lost >= len(chunks) or is_stuck)):
                return


def _judge_all(numbers: range) -> list[JudgedScript]:
    """Judge some files. Young cycles are collected after each file; a full collection, which takes longer, runs less often."""
    scripts = []
    for number in numbers:
        scripts.append(_judge(number))
        gc.collect(1)
    if numbers.start % COLLECT_AFTER == 0:
        gc.collect()
    return scripts


def _judge(number: int) -> JudgedScript:
    return judge_script(_waiting[number], _plan)
