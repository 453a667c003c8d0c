"""Judging training scripts: one after the other or in two processes, comments obeyed, notebooks told by their cells."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING

from ddpdoctor.cli.options import Common, seconds_left
from ddpdoctor.cli.progress import Progress
from ddpdoctor.cli.settings import rules_for
from ddpdoctor.collectors.comments import Comment, comments
from ddpdoctor.collectors.script import Scripts, ScriptText, find, read, with_modules
from ddpdoctor.doctor import Outcome, extended, judge
from ddpdoctor.facts.launch import Launch, Line
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.script import IdleComment, Script, SourceFile
from ddpdoctor.facts.script.module import modules
from ddpdoctor.findings import Finding, Report, Where
from ddpdoctor.rules import Rule, load

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

__all__ = ["AREA", "Reading", "judge_scripts", "named_by", "with_scripts"]

AREA = "script"
IDLE = "SCRIPT550"
"""The rule about comments that silence nothing: judged after all others."""
PROCESSES = 2
MANY = 40
"""Files from which on a second process is worth its start."""
CHUNK = 4
COLLECT_AFTER = 96
FILE_SECONDS = 10.0
"""What judging one file may take of a CPU; the longest that people wrote by hand take two."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every script is judged with: the rules, what is known besides, and the lines that start each script.

    `beside` are the modules that they may import, each other included; `left_out` the codes that --select and --ignore
    leave out.
    """

    rules: tuple[Rule, ...]
    known: Facts
    lines: dict[str, tuple[Line, ...]] = field(default_factory=dict)
    beside: tuple[SourceFile, ...] = ()
    left_out: frozenset[str] = frozenset()
    end: float = 1e9
    """When `--timeout` is over, as time.monotonic() counts."""


@dataclass(slots=True)
class Judged:
    """What came of one file; `failure` is why it could not be read."""

    path: str
    outcome: Outcome = field(default_factory=Outcome)
    failure: str | None = None


@dataclass(slots=True)
class Reading:
    """What came of all scripts: by these rules, and what the doctor itself could not do."""

    outcomes: list[Outcome] = field(default_factory=list)
    rules: tuple[Rule, ...] = ()
    failures: list[str] = field(default_factory=list)

    def added_to(self, report: Report) -> Report:
        """The report with it."""
        return extended(report, self.outcomes, self.rules, tuple(self.failures))


def named_by(lines: Iterable[Line]) -> dict[str, tuple[Line, ...]]:
    """The Python scripts that launch lines start, with the lines of each."""
    found: dict[str, tuple[Line, ...]] = {}
    for line in lines:
        script = line.script
        if script is not None and script.exists and os.path.isfile(script.path) and script.is_python is not False:
            found[script.path] = (*found.get(script.path, ()), line)
    return found


def _short(path: str) -> str:
    """The path as a user would type it here."""
    below = os.path.relpath(path)
    return path if below.startswith("..") else below


def with_scripts(report: Report, paths: Sequence[str], lines: Iterable[Line], known: Facts, common: Common) -> Report:
    """The report with what `judge_scripts` says."""
    return judge_scripts(paths, lines, known, common).added_to(report)


def judge_scripts(paths: Sequence[str], lines: Iterable[Line], known: Facts, common: Common) -> Reading:
    """What is wrong in these scripts, in folders of them, and in the scripts that the lines start.

    Args:
        known: the facts that scripts are judged with; those of a launch line take the place of its `launch`.
    """
    started = named_by(lines)
    found = find([*paths, *map(_short, started)])
    by_path = {os.path.realpath(path): starts for path, starts in started.items()}
    rules = rules_for(common, (AREA,))
    left_out = {each.code for each in load((AREA,))} - {each.code for each in rules}
    reading = Reading(rules=rules, failures=list(found.failures))
    with Progress(common.quiet or len(found.paths) < MANY) as progress:
        progress.phase(f"reading {len(found.paths)} scripts")
        texts, unread = _texts(found, {*by_path}, common)
        reading.failures += unread
        beside = with_modules([each.source for each in texts])
        end = time.monotonic() + seconds_left(common)
        plan = Plan(rules, known, by_path, beside, frozenset(left_out), end)
        progress.phase(f"judging {len(texts)} scripts")
        done = 0
        for each in _all(texts, plan, common):
            done += 1
            progress.step(f"judging {len(texts)} scripts: {done} done")
            reading.outcomes.append(each.outcome)
            reading.failures += [] if each.failure is None else [each.failure]
    if done < len(texts):
        reading.failures.append(f"judge {len(texts) - done} of {len(texts)} scripts: --timeout ran out")
    return reading


def _texts(found: Scripts, started: set[str], common: Common) -> tuple[list[ScriptText], list[str]]:
    """What is to be judged, and what could not be read. Of a folder, files that do not concern training are passed over."""
    texts = []
    failures = []
    for at, path in enumerate(found.paths):
        if seconds_left(common) <= 0:
            failures.append(f"read {len(found.paths) - at} of {len(found.paths)} scripts: --timeout ran out")
            break
        try:
            text = read(path)
        except OSError as error:
            failures.append(f"{path}: not read: {error.strerror}")
            continue
        if text.concerns or path in found.given or os.path.realpath(path) in started:
            texts.append(text)
    return texts, failures


def _all(texts: list[ScriptText], plan: Plan, common: Common) -> Iterator[Judged]:
    """Every file that can be judged before `--timeout` runs out, in order."""
    global _plan, _waiting
    _plan, _waiting = plan, texts
    if len(texts) < MANY or (os.cpu_count() or 1) < PROCESSES:
        for at in range(len(texts)):
            if seconds_left(common) <= 0:
                return
            yield _judge(at)
        return
    import multiprocessing

    context = multiprocessing.get_context("fork")  # the rules are loaded and the texts are read already
    with context.Pool(PROCESSES, initializer=_alone) as pool:
        yield from _collected(pool, len(texts), common)


_plan: Plan
_waiting: list[ScriptText]
"""What this process judges, and with what: a forked process finds it where its parent put it."""


def _collected(pool: Pool, count: int, common: Common) -> Iterator[Judged]:
    from multiprocessing import TimeoutError as Late

    results = pool.imap(_judge_all, [range(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)])
    for _ in range(0, count, CHUNK):
        try:
            yield from results.next(timeout=max(0.01, seconds_left(common)))
        except Late:
            return


def _judge_all(numbers: range) -> list[Judged]:
    """Judge some files. What refers to itself is collected after each; old modules, which take longer, after some."""
    found = []
    for number in numbers:
        found.append(_judge(number))
        gc.collect(1)
    if numbers.start % COLLECT_AFTER == 0:
        gc.collect()
    return found


def _alone() -> None:
    """In a process of the pool: Ctrl-C and the end are its parent's business, and it collects its garbage itself."""
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _judge(number: int) -> Judged:
    plan, text = _plan, _waiting[number]
    path = text.source.path
    starts = plan.lines.get(os.path.realpath(path), ())
    outcome = Outcome()
    late: list[str] = []
    try:
        with _limited(plan.end):
            outcome = _outcome(text, starts, plan)
    except TooLong:
        late = ["all"]
    late += sorted({each.code for each in outcome.crashed if each.error.startswith(TooLong.__name__)})
    outcome.crashed = [each for each in outcome.crashed if each.code not in late]
    limit = "--timeout ran out" if time.monotonic() >= plan.end else f"not done within {FILE_SECONDS:.0f} s of a CPU"
    told = f"judge {path} by {', '.join(late)}: {limit}"
    return Judged(path, outcome, failure=told if late else None)


class TooLong(Exception):
    """Raised in whatever judges a file when the file's time is over."""


@contextmanager
def _limited(end: float) -> Iterator[None]:
    """Ends the rules of one file after FILE_SECONDS or at `end`, one after the other: no text may hold up the others."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong("its time is over")

    before = [(each, signal.signal(each, late)) for each in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, FILE_SECONDS, FILE_SECONDS / 20)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, end - time.monotonic()), 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for each, handler in before:
            signal.signal(each, handler)


def _outcome(text: ScriptText, starts: tuple[Line, ...], plan: Plan) -> Outcome:
    """What the rules say of one script, started by each of the lines, less what its comments silence."""
    script = Script(files=(text.source,), beside=plan.beside)
    facts = replace(plan.known, script=script, launch=None, environ=None)
    rules = [each for each in plan.rules if each.code != IDLE]
    outcome = Outcome()
    tuple(modules(script))  # read once: a file that takes all its time here is not read again by every rule
    for line in starts:
        assert line.script is not None
        named = replace(line, script=replace(line.script, path=text.source.path))
        outcome.add(judge(replace(facts, launch=replace(plan.known.launch or Launch(), lines=(named,))), rules))
    if not starts:
        outcome = judge(facts, rules)
    outcome.findings = _once(outcome.findings)
    silencing = comments(text.source.text)
    idle = _silence(outcome, silencing, text.source.path, plan)
    if silencing:
        idle_facts = replace(facts, script=replace(script, idle=idle))
        outcome.add(judge(idle_facts, [each for each in plan.rules if each.code == IDLE]))
    outcome.findings = [_in_cell(finding, text) for finding in outcome.findings]
    return outcome


def _once(findings: list[Finding]) -> list[Finding]:
    """What several lines make of one place is told once, as the worst of them has it."""
    found: dict[tuple[str, Where], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.where)
        if key not in found or finding.worst.weight > found[key].worst.weight:
            found[key] = finding
    return list(found.values())


def _silence(outcome: Outcome, silencing: tuple[Comment, ...], path: str, plan: Plan) -> tuple[IdleComment, ...]:
    """Take the silenced findings out; the comments, or codes of one, that silenced none."""
    kept = []
    used: set[tuple[Comment, str]] = set()
    for finding in outcome.findings:
        where = finding.where
        by = [c for c in silencing if where.file == path and where.line and c.silences(finding.code, where.line)]
        used |= {(c, code) for c in by for code in c.codes if finding.code.startswith(code)}
        kept += [] if by else [finding]
    outcome.findings = kept
    return tuple(
        IdleComment(path, c.line, c.column, code)
        for c in silencing
        for code in c.codes
        if (c, code) not in used and not any(each.startswith(code) for each in plan.left_out)
    )


def _in_cell(finding: Finding, text: ScriptText) -> Finding:
    """A finding in a notebook: the line counts in its cell, which the message names."""
    line = finding.where.line
    cell = next((c for c in text.cells if line is not None and c.first_line <= line <= c.last_line), None)
    if cell is None or line is None or finding.where.file != text.source.path:
        return finding
    where: Where = replace(finding.where, line=line - cell.first_line + 1)
    return replace(finding, where=where, message=f"cell {cell.number}: {finding.message}")
