"""Judges what job files would start: all launchers of a job together, with the values on each host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ddpdoctor.app.lint_lines import environ_of
from ddpdoctor.collectors.launch_files import LaunchFiles
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, Severity, Where
from ddpdoctor.launch.evaluator.jobs import ImaginedJob
from ddpdoctor.launch.evaluator.rank_nodes import VARIABLES, nodes_of_ranks, origin_of_variable
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import Rule
from ddpdoctor.rules.launch.manifest.launch084_to_086_operators import operator_settings_overridden
from ddpdoctor.rules.views import submission_rules

__all__ = [
    "ImaginingRules",
    "has_one_launcher_per_host",
    "has_rank_variables",
    "imagined_outcomes",
]


@dataclass(frozen=True)
class ImaginingRules:
    """What judges imagined jobs: rules for lines and jobs, those that compare nodes, and all that look at whole files."""

    of_lines: tuple[Rule, ...]
    comparing: tuple[Rule, ...]
    of_files: tuple[Rule, ...]


def imagined_outcomes(
    files: LaunchFiles, facts: Facts, judging: ImaginingRules, known: Iterable[Finding]
) -> Iterator[Outcome]:
    """What the rules find in the jobs on several hosts that the files start.

    Args:
        known: findings of the launch lines as written: what they report or explain is not repeated.
    """
    rules, comparing = judging.of_lines, judging.comparing
    explains = {rule.code: rule.explains for rule in judging.of_files}
    codes = {(finding.code, finding.where.file) for finding in known}
    codes |= {(effect, file) for code, file in codes for effect in explains.get(code, ())}
    yield from _of_files(files, facts, judging, explains, codes)
    of_jobs = tuple(
        rule for rule in rules if "job" in (*rule.needs, *rule.wants) or rule.code == operator_settings_overridden.code
    )
    for path, jobs in files.jobs.items():
        is_manifest = any(line.pod is not None for line in files.lines.get(path, ()))  # judged with their pods
        for job in jobs:
            if not _is_compared(job):
                continue
            outcome = _judged(job, facts, of_jobs if is_manifest else rules)
            outcome.findings += _of_ranks(job, facts, comparing)
            placed: dict[tuple[str, Where], Finding] = {}
            for each in (_placed(finding, job, path) for finding in outcome.findings):
                placed.setdefault((each.code, each.where), each)  # hosts that run the same text have one together
            outcome.findings = [
                finding
                for finding in placed.values()
                if (finding.code, path) not in codes and finding.worst is not Severity.NOTE
            ]
            codes |= {(finding.code, path) for finding in outcome.findings}
            codes |= {(effect, path) for finding in outcome.findings for effect in explains.get(finding.code, ())}
            yield Outcome(findings=outcome.findings, crashed=outcome.crashed)


def _of_files(
    files: LaunchFiles,
    facts: Facts,
    judging: ImaginingRules,
    explains: Mapping[str, tuple[str, ...]],
    codes: set[tuple[str, str | None]],
) -> Iterator[Outcome]:
    """What the looks at whole files find; `codes` gets what need not be reported again."""
    of_files = submission_rules(judging.of_files)
    for path, submission in files.submissions.items():
        outcome = judge(replace(facts, launch=None, job=None, environ=None, submission=submission), of_files)
        hidden = {effect for finding in outcome.findings for effect in explains.get(finding.code, ())}
        outcome.findings = [
            finding for finding in outcome.findings if finding.code not in hidden and (finding.code, path) not in codes
        ]
        codes |= {(code, path) for code in (*hidden, *(finding.code for finding in outcome.findings))}
        yield Outcome(findings=outcome.findings, passed=outcome.passed, crashed=outcome.crashed)


def _is_compared(job: ImaginedJob) -> bool:
    """Whether it certainly runs on several hosts: only then can hosts differ in ways that the lines do not show."""
    return job.is_certain and len({member.place.host for member in job.launched}) > 1


def _judged(job: ImaginedJob, facts: Facts, rules: tuple[Rule, ...]) -> Outcome:
    return judge(replace(facts, launch=job.launch, job=job.job, environ=environ_of(job.launch)), rules)


def has_rank_variables(files: LaunchFiles, path: str) -> bool:
    """Whether the job file itself gives ranks their RANK, in a wrapper or in the text of a shell."""
    return any("RANK" in member.environ for job in files.jobs.get(path, ()) for member in job.launched)


def has_one_launcher_per_host(files: LaunchFiles, path: str) -> bool:
    """Whether every job of the file certainly starts one launcher of torch on each host."""
    jobs = [job for job in files.jobs.get(path, ()) if job.job.agents]
    return bool(jobs) and all(
        job.is_certain and len({member.place.host for member in job.launched}) == len(job.launched) for job in jobs
    )


def _of_ranks(job: ImaginedJob, facts: Facts, comparing: tuple[Rule, ...]) -> list[Finding]:
    """What the rules that compare nodes say of ranks that srun or mpirun starts without a launcher of torch."""
    nodes = nodes_of_ranks(job)
    if nodes is None:
        return []
    outcome = judge(replace(facts, launch=None, job=None, environ=None, nodes=nodes), comparing)
    return [_at_variable(finding, job) for finding in outcome.findings]


def _at_variable(finding: Finding, job: ImaginedJob) -> Finding:
    """The finding at the place where the file sets the variable that it is about."""
    name = next((VARIABLES[each.path] for each in finding.evidence if each.path in VARIABLES), None)
    origin = None if name is None else origin_of_variable(job, name)
    if origin is None:
        return finding
    line, column = job.place(origin)
    return replace(finding, where=Where(file=origin.file, line=line, column=column))


def _placed(finding: Finding, job: ImaginedJob, path: str) -> Finding:
    """The finding in the file, without a corrected line: the words of an imagined line are not those of the file."""
    where = finding.where
    if where.file is None or where.line is None:
        first = job.launch.lines[0].place(0)
        where = replace(where, file=path, line=first[0], column=first[1])
    where = Where(file=where.file, line=where.line, column=where.column, rank=where.rank)
    return replace(finding, where=where, fix_command=None, fix_commands=(), line_edits=())
