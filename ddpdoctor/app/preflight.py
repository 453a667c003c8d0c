"""`ddpdoctor check`: gather the facts of this machine and of its job, judge them, and combine what was found."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from ddpdoctor.app.node_lists import NodeLists
from ddpdoctor.app.preflight_plan import (
    SECTIONS,
    Observed,
    PreflightOptions,
    PreflightPlan,
    judge_scripts_of,
    plan_of,
    rules_of_machine,
)
from ddpdoctor.app.request import UsageError
from ddpdoctor.examined import CheckedSection, SectionState
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.findings import Severity
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.network.proof import NO_SECRET, SECRET_VARIABLE

if TYPE_CHECKING:
    from ddpdoctor.app.probe_run import Probing
    from ddpdoctor.app.request import Request
    from ddpdoctor.app.verdicts import JobVerdict
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Report

__all__ = ["Detail", "Preflight", "here", "preflight"]

DEFAULT_SECONDS = 120.0
"""`--timeout` of commands that start ranks."""


class Detail(Enum):
    """How much this process shows: of the processes of one job, one shows the whole report."""

    NOTHING = "nothing"
    ONE_LINE = "one line"
    REPORT = "report"


@dataclass(frozen=True)
class Preflight:
    """The report, its facts, and how much of the report this process shows."""

    report: Report
    facts: Facts
    detail: Detail


def preflight(request: Request, options: PreflightOptions) -> Preflight:
    """Judge this machine, the launch command of the request, or the job that the environment describes.

    Raises:
        UsageError: the files of `--write-nodes` are wrong, or options that only rules can refuse.
        CannotWriteError: a list of nodes was not written.
    """
    started = time.monotonic()
    if options.secret is not None:  # the ranks of the probe use the same
        os.environ[SECRET_VARIABLE] = _absolute(options.secret)
    lists = NodeLists.of(options.node_lists)
    plan = plan_of(replace(request, timeout=request.timeout or DEFAULT_SECONDS), options)
    observed = _gather(plan)
    report, facts = _judge(plan, observed, started), observed.facts
    report = replace(report, is_interrupted=observed.is_interrupted)
    if observed.verdict is not None:
        report = _with_verdict(report, observed.verdict, plan)
        facts = replace(facts, nodes=observed.verdict.nodes)
        lists.write(report, observed.verdict)
    report = _with_missing_probe(report, facts, plan)
    shown = _as_shown(report, facts, plan)
    if options.has_rehearsal:
        shown, facts = _with_rehearsal(shown, facts, plan)
    return Preflight(shown, facts, _detail(observed))


def _absolute(secret: str) -> str:
    return secret if secret == NO_SECRET else os.path.abspath(secret)


def _with_rehearsal(report: Report, facts: Facts, plan: PreflightPlan) -> tuple[Report, Facts]:
    """The report with what a rehearsal of the launch command's script finds; without one, its section says why.

    Raises:
        UsageError: no launch command.
    """
    from ddpdoctor.app.output_file import CannotWriteError
    from ddpdoctor.app.rehearse import RehearsalOptions, rehearse_launch
    from ddpdoctor.engine import retold

    if plan.line is None:
        raise UsageError("--rehearse needs a launch command: ddpdoctor check --rehearse -- torchrun …")
    try:
        rehearsed, found = rehearse_launch(plan.request, RehearsalOptions(reads_sources=False))
    except (UsageError, CannotWriteError) as error:
        section = CheckedSection("rehearsal", "rehearsal", SectionState.SKIPPED, str(error))
        return replace(report, sections=(*report.sections, section)), facts
    merged = retold(report, rehearsed.findings)
    sections = (*report.sections, replace(rehearsed.sections[0], area="rehearsal", title="rehearsal"))
    merged = replace(merged, sections=sections, failures=(*merged.failures, *rehearsed.failures))
    return merged, replace(facts, rehearsal=found.rehearsal)


def _as_shown(report: Report, facts: Facts, plan: PreflightPlan) -> Report:
    """The report with its sections, its subject and the source lines of its findings."""
    from ddpdoctor.app.excerpts import with_excerpts
    from ddpdoctor.app.sections import sections_of, subject_of

    sections = sections_of(facts, report, _sections(facts, plan))
    return replace(with_excerpts(report, facts.launch), sections=sections, subject=subject_of(facts))


def _gather(plan: PreflightPlan) -> Observed:
    """The facts of this machine and of its ranks, or of all nodes of a job with several."""
    from ddpdoctor.app.line_elsewhere import unprobed
    from ddpdoctor.app.probe_run import Probing, folders_of, refusal, too_many
    from ddpdoctor.facts.nodes import Form

    gap = None
    if plan.probes and plan.line is not None:
        gap = unprobed(plan.line_facts) or refusal(plan.line) or too_many(plan.line_facts)
    is_rank = (
        plan.job is not None and plan.job.form == Form.ENV
    )  # then the command is of one rank, which joins the others
    launch, folders = (None if is_rank else plan.line_facts), folders_of(plan.line_facts)
    probing = Probing(
        plan.request, plan.options.join_seconds, plan.options.is_alone, launch, folders, is_quick=plan.options.is_quick
    )
    if plan.job is None:
        return _gather_here(plan, probing, gap)
    from ddpdoctor.app.multinode_check import gather_with_other_nodes

    return gather_with_other_nodes(plan, plan.job, probing)


def _gather_here(plan: PreflightPlan, probing: Probing, refused: Gap | None) -> Observed:
    """The facts of this machine, and of its ranks unless the launch command was refused."""
    from ddpdoctor.app.probe_run import variables_of
    from ddpdoctor.app.progress import reporting

    request, line, looks = plan.request, plan.line_facts, probing.looks_at_the_machine()
    sections = (*SECTIONS, "launch", "probe") if request.facts is not None else SECTIONS
    with reporting(request.listener, enabled=looks and request.facts is None) as progress:
        try:
            if plan.probes and refused is None:
                probing.start_early()
            from ddpdoctor.app.facts_source import facts_for
            from ddpdoctor.app.line_elsewhere import without_what_is_elsewhere

            progress.phase("examining this machine")
            python = None if line is None or line.startup is None else line.startup.python
            facts, failures = facts_for(request, sections if looks else ("environ",), variables_of(line), python)
            if line is not None:
                facts = without_what_is_elsewhere(replace(facts, launch=line.launch, startup=line.startup), line)
            if refused is not None:
                facts = replace(facts, gaps=(*facts.gaps, refused))
            elif plan.probes:
                facts = probing.finish(facts, progress.phase)
            if not looks and (
                probing.answer is None or probing.answer.is_first
            ):  # the rank that would report has exited
                facts = replace(facts_for(request, SECTIONS)[0], probe=facts.probe)
        finally:
            probing.stop()
    return Observed(facts, failures, probing.answer, is_interrupted=probing.is_interrupted)


def _judge(plan: PreflightPlan, observed: Observed, started: float) -> Report:
    """The report about this machine, its launch command, and the script that the command starts."""
    from ddpdoctor.engine import examine  # after the probe was started, because importing torch takes longest

    rules = rules_of_machine(plan)
    if plan.line is None:
        return examine(observed.facts, rules, command="check", started=started, failures=observed.failures)
    from ddpdoctor.app.autocorrect import autocorrected
    from ddpdoctor.app.lint_lines import rules_of_machines, with_machines

    facts, line_rules = plan.line
    beside = (here(facts, observed.facts), line_rules)
    report = examine(observed.facts, rules, command="check", started=started, failures=observed.failures, beside=beside)
    machines = rules_of_machines(plan.request, facts.launch.lines if facts.launch is not None else ())
    report = autocorrected(with_machines(report, facts, machines), facts, line_rules)
    report = (observed.scripts or judge_scripts_of(facts, observed.facts, plan.request)).added_to(report)
    return _about(report, facts)


def _about(report: Report, line: Facts) -> Report:
    """The report with the launch command among its inputs."""
    from ddpdoctor.app.lint_examined import line_inputs

    return replace(report, inputs=(*line_inputs(line.launch, None, ()), *report.inputs))


def here(line: Facts, machine: Facts) -> Facts:
    """The launch command and the environment of its ranks on this machine: with its GPUs, its ports, NCCL's files."""
    environ, found = line.environ, machine.environ
    if environ is not None and found is not None:
        environ = replace(environ, conf_files=found.conf_files, paths=found.paths, gaps=found.gaps)
    return replace(machine, environ=environ, launch=line.launch, startup=line.startup)


def _with_verdict(report: Report, verdict: JobVerdict, plan: PreflightPlan) -> Report:
    from ddpdoctor.app.multinode_check import with_verdict
    from ddpdoctor.app.rule_selection import rules_for

    return with_verdict(report, verdict, rules_for(plan.request, (*SECTIONS, "launch", "probe")), plan.line_facts)


def _with_missing_probe(report: Report, facts: Facts, plan: PreflightPlan) -> Report:
    """The report, with a failure if ranks were to be probed but were not, and no finding explains it."""
    reasons = [gap.reason for gap in facts.gaps if plan.probes and gap.path == "probe" and gap.why is Why.UNANSWERED]
    has_errors = any(finding.worst is Severity.ERROR for finding in report.findings)
    return report if has_errors else replace(report, failures=(*report.failures, *reasons))


def _sections(facts: Facts, plan: PreflightPlan) -> tuple[str, ...]:
    """The sections of the summary."""
    return (
        *(("launch",) if facts.launch is not None else ()),
        *SECTIONS,
        *(("nodes",) if facts.nodes is not None else ()),
        *(("probe",) if plan.probes or facts.probe is not None else ()),
    )


def _detail(observed: Observed) -> Detail:
    """How much this process shows: all if it runs alone or is the first process of the job; one line for each other node."""
    answer, verdict = observed.answer, observed.verdict
    if answer is not None:
        if not answer.is_first:
            return Detail.NOTHING
        return Detail.REPORT if answer.is_head else Detail.ONE_LINE
    if verdict is None:
        return Detail.REPORT
    if not verdict.is_first:
        return Detail.NOTHING
    from ddpdoctor.app.multinode_check import is_shown_elsewhere

    return Detail.ONE_LINE if is_shown_elsewhere() else Detail.REPORT
