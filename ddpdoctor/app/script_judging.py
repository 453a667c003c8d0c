"""Judges one training script: within a time limit, with its ignore comments, notebooks by cell."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from types import FrameType

from ddpdoctor.app.excerpts import excerpt_of_text
from ddpdoctor.app.safe_corrections import with_safety
from ddpdoctor.collectors.script import ScriptText
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.script import IdleComment, Script, SourceFile
from ddpdoctor.findings import Finding, Where
from ddpdoctor.launch.ignore_comments import Comment, comments
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import Rule
from ddpdoctor.rules.script.script550_ignore_comment_idle import ignore_comment_idle
from ddpdoctor.scripts.syntax.module import modules
from ddpdoctor.system.budget import MEBIBYTES, limited_memory

__all__ = ["FILE_SECONDS", "JudgedScript", "ScriptJudging", "judge_script"]

FILE_SECONDS = 20.0
"""CPU seconds for judging one file; the longest ones written by hand take two."""
LONGEST_TIMER = 1e6


@dataclass(frozen=True, slots=True)
class ScriptJudging:
    """What every script is judged with: the rules, further facts, and the lines that start each script.

    `beside` are the modules that they may import, including each other; `left_out` the codes that --select and --ignore
    leave out.
    """

    rules: tuple[Rule, ...]
    known: Facts
    lines: dict[str, tuple[LaunchLine, ...]] = field(default_factory=dict)
    beside: tuple[SourceFile, ...] = ()
    left_out: frozenset[str] = frozenset()
    end: float = math.inf
    """When `--timeout` is over, as time.monotonic() counts."""
    proves_corrections: bool = False
    """Whether the corrected text is judged as well, so that the safe corrections are known."""


@dataclass(slots=True)
class JudgedScript:
    """The outcome of one file; `failure` is why it could not be judged completely."""

    path: str
    outcome: Outcome = field(default_factory=Outcome)
    failure: str | None = None


def judge_script(text: ScriptText, plan: ScriptJudging) -> JudgedScript:
    """What the rules find in a script, and which of them took too long."""
    path = text.source.path
    starts = plan.lines.get(os.path.realpath(path), ())
    outcome = Outcome()
    late: list[str] = []
    try:
        with limited_memory(), _limited(plan.end):
            outcome = _outcome(text, starts, plan)
    except TooLong:
        late = ["all"]
    except MemoryError:
        return JudgedScript(path, failure=f"{path}: not judged: needs more than {MEBIBYTES} MiB of memory")
    late += sorted({each.code for each in outcome.crashed if each.error.startswith(TooLong.__name__)})
    large = sorted({each.code for each in outcome.crashed if each.error.startswith(MemoryError.__name__)})
    outcome.crashed = [each for each in outcome.crashed if each.code not in large]
    if large and not late:
        why = f"needs more than {MEBIBYTES} MiB of memory"
        return JudgedScript(path, outcome, failure=f"{path}: not judged by {', '.join(large)}: {why}")
    outcome.crashed = [each for each in outcome.crashed if each.code not in late]
    limit = "--timeout ran out" if time.monotonic() >= plan.end else f"not done within {FILE_SECONDS:.0f} s of CPU time"
    by = "" if late[:1] == ["all"] else f" by {', '.join(late)}"
    return JudgedScript(path, outcome, failure=f"{path}: not judged{by}: {limit}" if late else None)


class TooLong(Exception):
    """Raised in the code that judges a file when the file's time is over."""


@contextmanager
def _limited(end: float) -> Iterator[None]:
    """Ends the rules of one file after FILE_SECONDS or at `end`, one after the other: no file may delay the others."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong("its time limit was reached")

    before = [(each, signal.signal(each, late)) for each in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, FILE_SECONDS, FILE_SECONDS / 200)
    signal.setitimer(signal.ITIMER_REAL, min(max(0.001, end - time.monotonic()), LONGEST_TIMER), 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for each, handler in before:
            signal.signal(each, handler)


def _outcome(text: ScriptText, starts: tuple[LaunchLine, ...], plan: ScriptJudging) -> Outcome:
    """What the rules find in one script, started by each of the lines, without what its comments silence."""
    script = Script(files=(text.source,), beside=plan.beside)
    facts = replace(plan.known, script=script, launch=None, environ=None)
    rules = [rule for rule in plan.rules if rule.code != ignore_comment_idle.code]
    outcome = Outcome()
    tuple(modules(script))  # read once: a file that takes all its time here is not read again by every rule
    for line in starts:
        assert line.script is not None
        named = replace(line, script=replace(line.script, path=text.source.path))
        outcome.add(judge(replace(facts, launch=replace(plan.known.launch or Launch(), lines=(named,))), rules))
    if not starts:
        outcome = judge(facts, rules)
    outcome.findings = _once(outcome.findings)
    if plan.proves_corrections and outcome.findings:
        outcome.findings = _with_safety(outcome.findings, text, starts, plan)
    silencing = comments(text.source.text)
    idle = _silence(outcome, silencing, text.source.path, plan)
    if silencing:
        idle_facts = replace(facts, script=replace(script, idle=idle))
        outcome.add(judge(idle_facts, [rule for rule in plan.rules if rule.code == ignore_comment_idle.code]))
    lines = text.source.text.split("\n")
    outcome.findings = [_in_cell(_with_excerpt(finding, text, lines), text) for finding in outcome.findings]
    return outcome


def _with_safety(
    findings: list[Finding], text: ScriptText, starts: tuple[LaunchLine, ...], plan: ScriptJudging
) -> list[Finding]:
    """The findings, with those corrections as safe that the same rules find to be so in the corrected text."""

    def judged(changed: str) -> list[Finding]:
        source = replace(text.source, text=changed)
        again = replace(plan, proves_corrections=False)
        return _outcome(replace(text, source=source), starts, again).findings

    return with_safety(text.source.text, text.source.path, findings, judged)


def _once(findings: list[Finding]) -> list[Finding]:
    """Findings at one place from several launch commands, once each, with the worst severity."""
    found: dict[tuple[str, Where], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.where)
        if key not in found or finding.worst.weight > found[key].worst.weight:
            found[key] = finding
    return list(found.values())


def _silence(
    outcome: Outcome, silencing: tuple[Comment, ...], path: str, plan: ScriptJudging
) -> tuple[IdleComment, ...]:
    """Remove the silenced findings; the comments, or codes in them, that silenced none."""
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


def _with_excerpt(finding: Finding, text: ScriptText, lines: Sequence[str]) -> Finding:
    """The finding with its source lines."""
    return (
        replace(finding, excerpt=excerpt_of_text(finding, lines)) if finding.where.file == text.source.path else finding
    )


def _in_cell(finding: Finding, text: ScriptText) -> Finding:
    """A finding in a notebook: the line number counts within its cell, which the message names."""
    line = finding.where.line
    cell = next((c for c in text.cells if line is not None and c.first_line <= line <= c.last_line), None)
    if cell is None or line is None or finding.where.file != text.source.path:
        return finding
    above = cell.first_line - 1
    where: Where = replace(finding.where, line=line - above)
    excerpt = finding.excerpt
    if excerpt is not None:
        lines = excerpt.lines[max(0, cell.first_line - excerpt.first) :]
        excerpt = replace(excerpt, first=max(1, excerpt.first - above), lines=lines, line=excerpt.line - above)
    return replace(finding.reworded(before=f"cell {cell.number}: "), where=where, excerpt=excerpt)
