"""Corrections of a whole job file: proposed, applied together, and proved by executing the corrected file again.

One correction of a file removes all its errors at once where that is possible. A finding that is left after it has none.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from ddpdoctor.app.autocorrect import Autocorrect
from ddpdoctor.app.patch import applied
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, apply, merged, quote
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.launch.evaluator.jobs import ImaginedJob, processes_of_job
from ddpdoctor.launch.evaluator.repairs import HEAD, Repair, repairs
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import cause_of
from ddpdoctor.rules.launch.pointing import HOST0

__all__ = ["JudgedFile", "corrected"]

_HEAD = re.compile(r"\$\(scontrol show hostnames \"?\$SLURM_JOB_NODELIST\"? \| head -n 1\)")
MOST_TRIES = 24
"""Corrected texts of one file that are executed."""


@dataclass(frozen=True)
class JudgedFile:
    """A job file with this text: what executing it showed, and what the rules found in it."""

    submission: Submission
    lines: tuple[LaunchLine, ...]
    jobs: tuple[ImaginedJob, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> Counter[str]:
        """How many errors of each cause it has."""
        return Counter(finding.code for finding in self.findings if finding.worst is Severity.ERROR)

    @property
    def is_sound(self) -> bool:
        """Whether the ranks of each job that certainly runs are numbered from 0 without a gap, as far as they are known."""
        return all(_is_one_world(job) for job in self.jobs if job.is_certain)


def corrected(
    before: JudgedFile, evaluate: Callable[[str], JudgedFile], autocorrect: Autocorrect
) -> tuple[Finding, ...]:
    """The findings of a file; those that one correction of the file removes have its edits.

    Args:
        evaluate: judges the file with another text.
        autocorrect: corrects single lines.
    """
    best = _best(before, evaluate, autocorrect)
    if best is before or not best.is_sound:
        return before.findings
    edits = tuple(_difference(before.submission, best.submission.text, is_safe=not best.errors))
    left = {finding.code for finding in best.findings}
    command = f"ddpdoctor lint --diff {quote(before.submission.file)} | patch -p1"
    return tuple(
        replace(finding, edits=edits, fix_command=finding.fix_command or command)
        if finding.code not in left
        else replace(finding, edits=())
        for finding in before.findings
    )


def _best(before: JudgedFile, evaluate: Callable[[str], JudgedFile], autocorrect: Autocorrect) -> JudgedFile:
    """The file without as many errors as proposals remove, one proposal after the other.

    A mistake may hide another one: a proposal that only uncovers it is followed too, and counts if no error is left in the end.
    """
    search = _Search(evaluate, autocorrect, {before.submission.text})
    best = search.climb(before)
    if best.errors:
        for uncovered in sorted(search.hiding, key=lambda found: found.errors.total()):
            final = search.climb(uncovered)
            if not final.errors:
                return final
    return best


@dataclass
class _Search:
    """The search for a corrected text. `seen` are the texts that were judged; `hiding` those in
    which an error is gone and another one may have appeared."""

    evaluate: Callable[[str], JudgedFile]
    autocorrect: Autocorrect
    seen: set[str]
    hiding: list[JudgedFile] = field(default_factory=list)

    def climb(self, current: JudgedFile) -> JudgedFile:
        """Follow proposals as long as one makes the file better."""
        first = current
        while current.errors or current is first:
            better = next((each for each in self._judged(current) if _is_better(each, current)), None)
            if better is None:
                break
            current = better
        return current

    def _judged(self, current: JudgedFile) -> Iterator[JudgedFile]:
        for repair in _proposals(current, self.autocorrect):
            text = _with(current.submission.text, repair)
            if text is None or text in self.seen or len(self.seen) > MOST_TRIES:
                continue
            self.seen.add(text)
            found = self.evaluate(text)
            if current.errors.keys() - found.errors.keys() and found.errors.total() <= current.errors.total():
                self.hiding.append(found)
            yield found


def _is_better(found: JudgedFile, before: JudgedFile) -> bool:
    """Fewer findings, none of a new cause, and nothing is started less often than before."""
    codes, known = {finding.code for finding in found.findings}, {finding.code for finding in before.findings}
    if _unknown(found) > _unknown(before):
        return False  # what is not known proves nothing
    fewer = (found.errors.total(), len(found.findings)) < (before.errors.total(), len(before.findings))
    return fewer and codes <= known and len(found.jobs) >= len({job.launched[0].origin for job in before.jobs})


def _unknown(judged: JudgedFile) -> int:
    """How many words of its launchers are not known."""
    words = (word for task in judged.submission.tasks for word in task.line.argv)
    return sum(word.known is None for word in words)


def _proposals(judged: JudgedFile, autocorrect: Autocorrect) -> Iterator[Repair]:
    """Corrections of the file, all at once first."""
    own = [repair for each in judged.findings if (repair := _of_finding(judged.submission, each))]
    lines = judged.lines if judged.errors else ()
    of_lines = [repair for line in lines if (repair := _of_line(judged.submission, line, autocorrect))]
    yield _together(own)
    if own and of_lines:
        yield _together([*own, *of_lines])
    yield from own
    for finding in judged.findings:
        expected = finding.evidence[0].expected if finding.evidence else ""
        yield from repairs(judged.submission, cause_of(finding.code).rule.repairs, expected)
    for repair in (_together(of_lines), *of_lines):
        yield _with_variable(judged.submission, repair)
        yield repair


def _with_variable(submission: Submission, repair: Repair) -> Repair:
    """The same with the variable in which the file already has the address and the port of the master."""
    names = re.findall(r"(?mi)^[ \t]*(?:export[ \t]+)?(\w*(?:master|head)_?(?:addr|node|ip|host)\w*)=", submission.text)
    port = re.search(r"(?m)^[ \t]*(?:export[ \t]+)?(MASTER_PORT)=", submission.text)
    if not names:
        return ()
    found = []
    for edit in repair:
        text = _HEAD.sub(f"${names[-1]}", edit.text)
        text = text.replace(f"${names[-1]}:29400", f"${names[-1]}:$MASTER_PORT") if port else text
        found.append(SpanEdit(edit.start, edit.end, text))
    return tuple(found)


def _together(several: Sequence[Repair]) -> Repair:
    """Those of them that fit together, the first ones first."""
    kept: list[SpanEdit] = []
    for repair in several:
        if not any(_clash(edit, other) for edit in repair for other in kept):
            kept += repair
    return tuple(kept)


def _clash(one: SpanEdit, other: SpanEdit) -> bool:
    return one.start <= other.end and other.start <= one.end


def _of_finding(submission: Submission, finding: Finding) -> Repair:
    """The edits that the rule itself gives."""
    rows = [0]
    for row in submission.text.split("\n"):
        rows.append(rows[-1] + len(row) + 1)
    return tuple(
        SpanEdit(rows[edit.line - 1] + edit.column - 1, rows[edit.end_line - 1] + edit.end_column - 1, edit.text)
        for edit in finding.edits
        if edit.file == submission.file
    )


def _of_line(submission: Submission, line: LaunchLine, autocorrect: Autocorrect) -> Repair:
    """The corrected launch line, where its text stands in the file as it is."""
    start = sum(len(row) + 1 for row in submission.text.split("\n")[: line.first_line - 1]) + line.first_column - 1
    if line.marks or submission.text[start : start + len(line.source)] != line.source:
        return ()
    better = autocorrect.line(line).source
    if HOST0 in better and submission.shell is not None and submission.shell.is_batch:
        better = better.replace(HOST0, HEAD)
    if not line.source.startswith((" ", "\t")):
        better = better.lstrip()
    names = set(re.findall(r"(?<![\w./-])[\w./-]+\.py\b", better)) - set(
        re.findall(r"(?<![\w./-])[\w./-]+\.py\b", line.source)
    )
    invents = (
        bool(names) or HOST0 in better or ("hostfile=hostfile" in better and "hostfile=hostfile" not in line.source)
    )
    if better == line.source or invents:
        return ()
    return (SpanEdit(start, start + len(line.source), better),)


def _with(text: str, repair: Repair) -> str | None:
    """The text with these edits; None where two of them overlap."""
    try:
        return apply(text, merged(repair))
    except ValueError:
        return None


def _difference(submission: Submission, text: str, *, is_safe: bool) -> Iterator[Edit]:
    """The edits that make one text of the other, row by row; safe if they leave no error."""
    old, new = submission.text.split("\n"), text.split("\n")
    found = []
    for kind, first, last, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        rows = "".join(f"{row}\n" for row in new[start:end])
        found.append(Edit(submission.file, first + 1, 1, last + 1, 1, rows, is_safe=is_safe))
    result = applied(submission.text, found)
    if result.rstrip("\n") == text.rstrip("\n"):
        yield from found


def _is_one_world(job: ImaginedJob) -> bool:
    processes = processes_of_job(job)
    ranks = [process.rank for process in processes if process.rank is not None]
    sizes = {process.world_size for process in processes}
    are_apart = len(job.job.agents) > 1 and all(not agent.plan.is_multinode for agent in job.job.agents)
    if len(ranks) < len(processes) or None in sizes or are_apart:
        return True
    return sorted(ranks) == list(range(len(ranks))) and sizes == {len(ranks)}
