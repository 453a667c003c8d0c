"""What `triage`, `hang` and `run` share: from inputs to a report about them."""

from __future__ import annotations

import difflib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ddpdoctor.app.archived_inputs import unpacked_inputs
from ddpdoctor.app.examined_logs import examined_inputs, examined_job, subject_of, worst_first
from ddpdoctor.app.excerpts import with_code_of_tracebacks
from ddpdoctor.app.facts_source import UnreadableError, load_facts, text_of
from ddpdoctor.app.given_names import with_given_names
from ddpdoctor.app.request import Request, UsageError, seconds_left
from ddpdoctor.app.rule_selection import rules_for, selection
from ddpdoctor.app.standard_input import on_disk, standard_input
from ddpdoctor.collectors.hang.artifacts import hang_artifacts, hang_of_job
from ddpdoctor.collectors.log.inputs import LATE, STDIN, STDIN_NAME
from ddpdoctor.collectors.log.parallel_read import KILLED
from ddpdoctor.collectors.log.read_logs import read
from ddpdoctor.engine import examine, extended, judge, retold, united
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.log import GpuAddress, InputKind, Log
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding, Report
from ddpdoctor.logs.attribution import attributed
from ddpdoctor.logs.jobs_of_log import JobLog, jobs_of_log
from ddpdoctor.logs.merged import merged
from ddpdoctor.privacy.reports import without_secrets
from ddpdoctor.render.json import findings_in
from ddpdoctor.rules import AREAS, Rule
from ddpdoctor.rules.log.culprits import with_culprits
from ddpdoctor.rules.views import hang_rules, log_rules_alone
from ddpdoctor.system.budget import OverBudgetError, within_budget
from ddpdoctor.wording import counted

__all__ = ["DEFAULT_TRIAGE_SECONDS", "triaged"]

DEFAULT_TRIAGE_SECONDS = 300.0
"""`--timeout` of `triage`."""
LEAST_JUDGING_SECONDS = 5.0
"""Time for judging even if reading took all of `--timeout`."""
PARTS = ((1000, 100), (50, 5), (0, 0))
"""How many lines and tracebacks are judged of a log that is too large to judge as a whole: the most that its budget allows."""
PART_SECONDS = 10.0
MOST_LATE = 4
MOST_NAMES = 20
"""Most jobs that are listed for an unknown job name."""


def triaged(
    paths: Iterable[str],
    request: Request,
    *,
    started: float,
    command: str = "triage",
    job: str | None = None,
    is_one_job: bool = False,
) -> tuple[Report, Facts]:
    """The report about these files, folders and standard input (`-`), and the facts of its first job.

    Args:
        paths: the inputs.
        request: the options.
        started: `time.monotonic()` when the command began.
        command: the ddpdoctor command, for the report.
        job: the name of the only job to judge.
        is_one_job: whether everything is known to belong to one job.

    Raises:
        UsageError: no job has this name.
    """
    rules = log_rules_alone(selection(request))
    given = list(paths)
    deadline = time.monotonic() + seconds_left(request, DEFAULT_TRIAGE_SECONDS)
    stream = standard_input(deadline) if STDIN in given else None
    with unpacked_inputs(given) as archived, on_disk(archived.paths, stream) as files:
        log = read(files, [s for rule in rules for s in rule.signatures], stream, deadline)
        given_names = dict(zip(files, archived.paths, strict=True))
        names = [STDIN_NAME if path == STDIN else path for path in files]

        def judged(part: Log) -> tuple[Report, Facts]:
            return _Triage(part, rules, request, command, started).judged(job, is_one_job=is_one_job, named=names)

        try:
            seconds = max(LEAST_JUDGING_SECONDS, seconds_left(request, DEFAULT_TRIAGE_SECONDS))
            report, facts = within_budget(lambda: judged(log), seconds)
        except OverBudgetError as error:
            (report, facts), covered = _judged_in_part(judged, log)
            left_out = f"judge {len(log.lines)} lines and {len(log.tracebacks)} tracebacks: {error}; {covered}"
            report = replace(report, failures=(left_out, *report.failures))
        if job is None:
            from ddpdoctor.app.triage_tools import examined_tools, with_tools  # after the log was read

            tools = examined_tools(log, request, names, deadline)
            report = report if tools is None else with_tools(report, tools)
            report = replace(report, inputs=(*report.inputs, *_folders_of_nothing(report.inputs, names)))
        report = archived.as_given(report)
    report = with_given_names(report, {path: STDIN_NAME for path, name in given_names.items() if path != name == STDIN})
    return without_secrets(report), facts


def _folders_of_nothing(inputs: Iterable[ExaminedInput], named: Iterable[str]) -> list[ExaminedInput]:
    """The named folders in which no file was understood: nothing in them was examined."""
    found = []
    for folder in dict.fromkeys(named):
        inside = [each for each in inputs if not each.is_named and each.path.startswith(f"{folder.rstrip('/')}/")]
        if inside and not any(each.is_understood for each in inside):
            reason = f"nothing to judge: {counted(len(inside), 'file')}, none with the output of a job"
            found.append(ExaminedInput(folder, "unknown", is_understood=False, reason=reason))
    return found


def _judged_in_part(judged: Callable[[Log], tuple[Report, Facts]], log: Log) -> tuple[tuple[Report, Facts], str]:
    """The report about the beginning of a log and its facts, and what it covers."""
    for lines, tracebacks in PARTS[:-1]:
        part = _beginning(log, lines, tracebacks)
        try:
            found = within_budget(lambda part=part: judged(part), PART_SECONDS)  # type: ignore[misc]
        except OverBudgetError:
            continue
        return found, f"the report covers the first {lines} and {tracebacks}"
    return judged(_beginning(log, *PARTS[-1])), "the report covers none of them"


def _beginning(log: Log, lines: int, tracebacks: int) -> Log:
    """The first relevant lines and records of a log."""
    return replace(
        log,
        lines=log.lines[:lines],
        tracebacks=log.tracebacks[:tracebacks],
        unfinished=log.unfinished[:tracebacks],
        exits=log.exits[:tracebacks],
        marks=log.marks[:tracebacks],
    )


def _unread(log: Log, why: str) -> tuple[str, ...]:
    """The files that were not read for this reason: without them nothing can be said to be healthy."""
    names = [source.name for source in log.sources if source.problem == why]
    more = f" and {len(names) - MOST_LATE} more" if len(names) > MOST_LATE else ""
    return (f"read {', '.join(names[:MOST_LATE])}{more}: {why}",) if names else ()


class _Triage:
    """What was read, judged job by job."""

    def __init__(self, log: Log, rules: tuple[Rule, ...], request: Request, command: str, started: float) -> None:
        self._log, self._rules, self._request = log, rules, request
        self._command, self._started = command, started
        self._problems: dict[str, str] = {}
        """Why saved facts and reports could not be read, by file."""
        self._saved = _saved(log, self._problems)
        self._saved_findings = _saved_findings(log, self._problems)
        self._seats = _seats(self._saved)
        self._artifacts = hang_artifacts(log)
        self._failures = (*(f"read {gap.reason}" for gap in log.gaps), *_unread(log, LATE), *_unread(log, KILLED))

    def judged(self, wanted: str | None, *, is_one_job: bool, named: Iterable[str]) -> tuple[Report, Facts]:
        """The report about all jobs, or about the selected one, and the facts of the worst."""
        parts = jobs_of_log(self._log, is_one_job=is_one_job)
        is_alone = len(parts) == 1
        if wanted is not None:
            parts = [_wanted(wanted, parts)]
        judged = [(part, *self._judged(part, is_alone=is_alone)) for part in parts]
        jobs = {part.name: examined_job(part.name, facts, report) for part, report, facts in judged if part.name}
        judged.sort(key=lambda each: (each[0].name is None, worst_first(jobs[each[0].name]) if each[0].name else ()))
        report = judged[0][1] if len(judged) == 1 else united([report for _, report, _ in judged])
        report = replace(retold(report, self._saved_findings), failures=(*self._failures, *report.failures))
        inputs = examined_inputs(
            self._log,
            {part.name: part.sources for part, _, _ in judged if part.name is not None},
            named,
            [(part.sources, facts) for part, _, facts in judged],
            self._problems,
        )
        if wanted is not None:
            inputs = tuple(each for each in inputs if each.job == wanted or (each.is_understood and each.reason))
        ordered = tuple(jobs[part.name] for part, _, _ in judged if part.name is not None)
        files = len({source for part, _, _ in judged if part.name is not None for source in part.sources})
        return replace(report, inputs=inputs, jobs=ordered, subject=subject_of(inputs, ordered, files)), judged[0][2]

    def _judged(self, part: JobLog, *, is_alone: bool) -> tuple[Report, Facts]:
        """The report about one job, and its facts."""
        log = attributed(part.log)
        saved = self._saved if is_alone else []
        log = replace(merged(log, (each.log for each in saved if each.log is not None)), seats=self._seats)
        facts = Facts(
            schema=SCHEMA,
            collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            hostname=socket.gethostname().partition(".")[0],
            log=log,
            hang=hang_of_job(self._artifacts, log, [each.hang for each in saved if each.hang is not None]),
        )
        report = with_culprits(with_code_of_tracebacks(self._report(facts), log), log)
        return replace(report, findings=tuple(replace(f, job=part.name) for f in report.findings)), facts

    def _report(self, facts: Facts) -> Report:
        if facts.hang is None:
            return examine(facts, self._rules, command=self._command, started=self._started)
        failures = tuple(f"read {gap.reason}" for gap in facts.hang.gaps)
        known = rules_for(self._request, tuple(AREAS.values()))
        # A cause found in the ranks' dumps replaces the same cause found in a log line: dumps prove more.
        dumps = judge(facts, hang_rules(known))
        shown = {finding.code for finding in dumps.findings}
        rules = tuple(rule for rule in self._rules if rule.code not in shown)
        report = examine(facts, rules, command=self._command, started=self._started, failures=failures)
        return extended(report, [dumps], known)


def _wanted(name: str, parts: Iterable[JobLog]) -> JobLog:
    """The part of the job with this name.

    Raises:
        UsageError: no such job; the message lists the jobs.
    """
    by_name = {part.name: part for part in parts if part.name is not None}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    names = list(by_name)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    raise UsageError(f"--job {name!r:.80}: no such job; {guess}jobs: {', '.join(names[:MOST_NAMES]) or 'none'}{more}")


def _saved(log: Log, problems: dict[str, str]) -> list[Facts]:
    """The facts that `ddpdoctor collect` wrote, among the sources of a log; `problems` get why some could not be read."""
    found = []
    for source in log.sources:
        if source.kind is InputKind.FACTS:
            try:
                found.append(load_facts(Path(source.name)))
            except UnreadableError as error:
                problems[source.name] = str(error).removeprefix(f"{source.name}: ")
    return found


def _seats(saved: Iterable[Facts]) -> tuple[GpuAddress, ...]:
    """The places of the GPUs of the machines whose facts were collected."""
    return tuple(
        GpuAddress(each.hostname, device.bus_id.partition(".")[0], device.index)
        for each in saved
        if each.gpu is not None
        for device in each.gpu.devices
        if device.bus_id is not None
    )


def _saved_findings(log: Log, problems: dict[str, str]) -> list[Finding]:
    """The findings of saved reports among the sources of a log; `problems` get why some could not be read."""
    found: list[Finding] = []
    for source in log.sources:
        if source.kind is InputKind.REPORT:
            try:
                found += findings_in(text_of(Path(source.name)))
            except (UnreadableError, ValueError) as error:
                problems[source.name] = str(error).removeprefix(f"{source.name}: ")
    return found
