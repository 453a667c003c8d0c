"""`ddpdoctor check`: the preflight of this machine, of a launch line, or of the job that the environment describes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, Format
from ddpdoctor.cli.options import seconds_option
from ddpdoctor.facts.gaps import Why
from ddpdoctor.findings import Severity

if TYPE_CHECKING:
    from ddpdoctor.app.lint_scripts import Reading
    from ddpdoctor.app.probe_run import Probing
    from ddpdoctor.app.verdicts import Verdict
    from ddpdoctor.collectors.probe import Answer
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Finding, Report
    from ddpdoctor.launch.jobs import Job
    from ddpdoctor.rules import Rule

__all__ = ["check", "here"]

SECTIONS = ("environ", "host", "net", "gpu", "topo", "versions")
DEFAULT_SECONDS = 120.0
"""`--timeout` of commands that start ranks."""


@dataclass(frozen=True)
class Plan:
    """What one check does: `line` is the launch line given after --, as facts with the rules that judge it."""

    common: Common
    no_probe: bool
    no_meet: bool
    join_seconds: float
    line: tuple[Facts, tuple[Rule, ...]] | None
    job: Job | None = None
    """The job whose other nodes are met, None to judge this node alone."""

    @property
    def probes(self) -> bool:
        return not self.no_probe and self.common.facts is None


def check(
    common: Common,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Do not start ranks.")] = False,
    no_meet: Annotated[bool, typer.Option("--no-meet", help="Judge and probe this node alone.")] = False,
    join_timeout: Annotated[
        float,
        typer.Option(
            "--join-timeout", metavar="SECONDS", parser=seconds_option, help="How long to wait for the other nodes."
        ),
    ] = 30.0,
    write_nodes: Annotated[
        str | None,
        typer.Option(
            "--write-nodes",
            metavar="GOOD,BAD",
            help="Write the names of good and bad nodes to two files, for srun --exclude.",
        ),
    ] = None,
) -> int:
    """Judge this machine, or a launch given after --, before the job starts."""
    from ddpdoctor.app.node_lists import NodeLists

    started = time.time()
    lists = NodeLists.of(write_nodes)
    common = replace(common, timeout=common.timeout or DEFAULT_SECONDS)
    plan = Plan(common, no_probe, no_meet, join_timeout, _read_line(common))
    plan = replace(plan, job=_job(plan))
    facts, failures, answer, verdict, scripts = _gather(plan)
    from ddpdoctor.engine import examine  # after the probe was started: its import of torch is the longest part

    rules = _rules(plan)
    line = plan.line and (here(plan.line[0], facts), plan.line[1])
    report = examine(facts, rules, command="check", started=started, failures=failures, beside=line)
    if plan.line is not None:
        from ddpdoctor.app.autocorrect import repaired
        from ddpdoctor.app.lint_lines import rules_of_machines, with_machines

        launch = plan.line[0].launch
        machines = rules_of_machines(common, launch.lines if launch is not None else ())
        report = repaired(with_machines(report, plan.line[0], machines), *plan.line)
        report = (scripts or _judge_scripts(plan.line[0], facts, common)).added_to(report)
    if verdict is not None:
        from ddpdoctor.app.multinode_check import is_told_elsewhere, with_verdict
        from ddpdoctor.app.rule_selection import rules_for

        report = with_verdict(
            report, verdict, rules_for(common, (*SECTIONS, "launch", "probe")), plan.line and plan.line[0]
        )
        facts = replace(facts, nodes=verdict.nodes)
        lists.write(report, verdict)
    report = _without_probe(report, facts, plan)
    from ddpdoctor.cli.output import emit_shortly

    if verdict is not None:
        if answer is None and not verdict.is_first:
            return report.exit_code(common.fail_on.severity)
        if answer is None and is_told_elsewhere():
            return emit_shortly(report, common)
    if answer is not None and not answer.is_first:
        return report.exit_code(common.fail_on.severity)
    if answer is not None and not answer.is_head:
        return emit_shortly(report, common)
    return _tell(report, facts, plan)


def _without_probe(report: Report, facts: Facts, plan: Plan) -> Report:
    """The report that says so when ranks were to be probed, could not be, and nothing else that is wrong explains it."""
    reasons = [gap.reason for gap in facts.gaps if plan.probes and gap.path == "probe" and gap.why is Why.UNANSWERED]
    has_errors = any(each.worst is Severity.ERROR for each in report.findings)
    return report if has_errors else replace(report, failures=(*report.failures, *reasons))


def _read_line(common: Common) -> tuple[Facts, tuple[Rule, ...]] | None:
    """The launch line after -- as facts, with the rules that judge it; None without one."""
    if common.launch is None or common.facts is not None:
        return None
    from ddpdoctor.app.lint_lines import facts_of, rules_of

    # What a rule of the environment would like to know of the machine is known here: it is judged there.
    rules = (
        each for each in rules_of(common) if "launch" in (*each.needs, *each.wants) or not {*each.wants} & {*SECTIONS}
    )
    return facts_of(common, [], None), tuple(rules)


def _job(plan: Plan) -> Job | None:
    """The job whose other nodes this one meets; None with --no-meet, or when nobody says that there are any."""
    if plan.no_meet or plan.common.facts is not None:
        return None
    from ddpdoctor.app.job_to_meet import job_to_meet

    return job_to_meet(plan.line, os.environ)


def here(line: Facts, machine: Facts) -> Facts:
    """The line and the environment of its ranks, on this machine: its GPUs, its ports, the files that NCCL reads."""
    environ, found = line.environ, machine.environ
    if environ is not None and found is not None:
        environ = replace(environ, conf_files=found.conf_files, paths=found.paths, gaps=found.gaps)
    return replace(machine, environ=environ, launch=line.launch)


def _judge_scripts(line: Facts, machine: Facts, common: Common) -> Reading:
    """What is wrong in the script that the line starts, judged against the GPUs of this machine too."""
    from ddpdoctor.app.lint_scripts import Reading, judge_scripts

    if line.launch is None or all(each.script is None for each in line.launch.lines):
        return Reading()
    return judge_scripts((), line.launch.lines, replace(machine, launch=line.launch), common)


def _rules(plan: Plan) -> tuple[Rule, ...]:
    """The rules of this machine: with a launch line without those that judge the line, or, where it starts ranks, those of
    a running process.
    """
    from ddpdoctor.app.job_to_meet import starts_ranks
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.rules import CauseScope

    areas = (*SECTIONS, "launch", *(("probe",) if plan.probes or plan.common.facts else ()))
    rules = rules_for(plan.common, areas)
    if plan.job is None and plan.common.facts is None:
        rules = tuple(each for each in rules if "nodes" not in each.needs)
    if plan.line is not None:
        judged = {each.code for each in plan.line[1]}
        is_rank = not starts_ranks(plan.line[0])
        return tuple(
            each for each in rules if each.code not in judged and (is_rank or each.scope is not CauseScope.PROCESS)
        )
    if plan.common.facts is not None:
        return rules
    if plan.job is not None:
        return tuple(each for each in rules if "launch" not in each.needs)
    without = {"launch"} if plan.probes else {"launch", "probe"}
    return tuple(each for each in rules if not without & set(each.needs))


def _gather(plan: Plan) -> tuple[Facts, tuple[str, ...], Answer | None, Verdict | None, Reading | None]:
    """The facts, what could not be done to get them, what the probe said of this rank's turn to tell, the meeting's
    verdict, and what is wrong in the script if that was told to the other nodes.
    """
    from ddpdoctor.app.probe_run import Probing, folders_of, refusal, variables_of
    from ddpdoctor.app.progress import Progress
    from ddpdoctor.facts.nodes import Form

    common, line = plan.common, plan.line
    sections = (*SECTIONS, "launch", "probe") if common.facts is not None else SECTIONS
    gap = refusal(line) if plan.probes and line is not None else None
    is_rank = plan.job is not None and plan.job.form == Form.ENV  # then the line is of one rank, which joins the others
    launch, folders = (None if is_rank else line and line[0]), folders_of(line and line[0])
    probing = Probing(common, plan.join_seconds, plan.no_meet, launch, folders)
    if plan.job is not None:
        return _gather_jointly(plan, plan.job, probing)
    looks = probing.looks_at_the_machine()
    with Progress(common.quiet or not looks or common.facts is not None) as progress:
        try:
            if plan.probes and gap is None:
                probing.start_early()
            from ddpdoctor.app.facts_source import facts_for

            progress.phase("looking at this machine")
            facts, failures = facts_for(common, sections if looks else ("environ",), variables_of(line and line[0]))
            if line is not None:
                facts = replace(facts, launch=line[0].launch)
            if gap is not None:
                facts = replace(facts, gaps=(*facts.gaps, gap))
            elif plan.probes:
                facts = probing.finish(facts, progress.phase)
            if not looks and (probing.answer is None or probing.answer.is_first):  # the rank that would tell is gone
                facts = replace(facts_for(common, SECTIONS)[0], probe=facts.probe)
        finally:
            probing.stop()
    return facts, failures, probing.answer, None, None


def _gather_jointly(
    plan: Plan, job: Job, probing: Probing
) -> tuple[Facts, tuple[str, ...], Answer | None, Verdict | None, Reading | None]:
    """The same together with the other nodes of the job."""
    from ddpdoctor.app.multinode_check import errors_of, look, own_errors, probe_together
    from ddpdoctor.app.multinode_session import Convening
    from ddpdoctor.app.probe_run import variables_of
    from ddpdoctor.app.progress import Progress
    from ddpdoctor.app.request import seconds_left
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.app.verdicts import rules_of_nodes

    common, line = plan.common, plan.line
    looks = probing.looks_at_the_machine()
    ranks_environ = {**os.environ, **variables_of(line and line[0])}
    with Progress(common.quiet or not looks) as progress:
        convening = Convening(job, line and line[0], plan.join_seconds, progress.phase)
        try:
            if plan.probes:
                probing.import_early(1 if convening.is_of_ranks else job.nproc, ranks_environ)
            progress.phase("looking at this machine")
            facts, failures = look(common, convening, line, SECTIONS if looks else ("environ",))
            rules = _rules(plan)

            # torch is being imported meanwhile
            scripts = _judge_scripts(line[0], facts, common) if line is not None and looks else None
            wrong = errors_of(scripts.outcomes) if scripts is not None else []

            def judge_here(facts: Facts) -> list[Finding]:
                return own_errors(facts, line, rules) + wrong

            own = judge_here(facts)
            if own:
                probing.stop()
            elif plan.probes:
                probing.import_early(convening.nproc(facts), ranks_environ)
            across = rules_of_nodes(rules_for(common, (*SECTIONS, "launch", "probe")))
            verdict = convening.meet(facts, own, judge_here, max(seconds_left(common), 1.0), across)
            facts = verdict.facts or facts
            if plan.probes:
                facts = probe_together(facts, verdict, convening, probing, line and line[0], progress.phase)
        finally:
            convening.stop()
            probing.stop()
    return facts, failures, probing.answer, verdict, scripts


def _tell(report: Report, facts: Facts, plan: Plan) -> int:
    """Show the summary and the report, and write the file."""
    from ddpdoctor.cli.output import emit, has_colour, width

    common = plan.common
    tables = ""
    if not common.quiet and (common.format is Format.table or common.output is not None):
        from ddpdoctor.cli.tables.check import draw

        areas = (
            *(("launch",) if facts.launch is not None else ()),
            *SECTIONS,
            *(("nodes",) if facts.nodes is not None else ()),
            *(("probe",) if plan.probes or facts.probe is not None else ()),
        )
        tables = draw(facts, report, areas, width=width(), colour=has_colour(common))
    return emit(report, common, tables)
