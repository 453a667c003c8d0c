"""What one `ddpdoctor check` does: its launch command, the job whose other nodes take part, and the rules that judge it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.request import UsageError
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.app.lint_scripts import ScriptOutcomes
    from ddpdoctor.app.request import Request
    from ddpdoctor.app.verdicts import JobVerdict
    from ddpdoctor.collectors.probe import ProbeResult
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.launch.jobs import LocalJob
    from ddpdoctor.rules import Rule

__all__ = [
    "SECTIONS",
    "Observed",
    "PreflightOptions",
    "PreflightPlan",
    "judge_scripts_of",
    "plan_of",
    "rules_of_machine",
]

SECTIONS = ("environ", "host", "net", "gpu", "topo", "versions")


@dataclass(frozen=True)
class PreflightOptions:
    """The options of `check` besides those that all commands share."""

    has_probe: bool = True
    is_alone: bool = False
    """Judge and probe this node only."""
    join_seconds: float = 30.0
    node_lists: str | None = None
    """The two files for the names of good and bad nodes, as given."""
    is_quick: bool = False
    """Do not measure what each GPU computes and copies."""
    has_rehearsal: bool = False
    """Also rehearse the script of the launch command."""
    secret: str | None = None
    """The file with which the nodes prove that they belong to the job, or `none`."""


@dataclass(frozen=True)
class PreflightPlan:
    """What one check does. `line` is the launch command after `--`, as facts with the rules that judge it."""

    request: Request
    options: PreflightOptions
    line: tuple[Facts, tuple[Rule, ...]] | None
    job: LocalJob | None = None
    """The job whose other nodes take part, None to judge this node alone."""

    @property
    def probes(self) -> bool:
        """Whether ranks are to be probed."""
        return self.options.has_probe and self.request.facts is None

    @property
    def line_facts(self) -> Facts | None:
        """The facts of the launch command."""
        return None if self.line is None else self.line[0]


@dataclass(frozen=True)
class Observed:
    """What was gathered: facts, and what failed meanwhile.

    `answer` is that of the probe, `verdict` that of all nodes together, `scripts` the findings in the script if the other
    nodes were sent them; each is None if it was not requested. `is_interrupted`: Ctrl-C ended the work early, and `failures`
    or gaps say what was not examined.
    """

    facts: Facts
    failures: tuple[str, ...]
    answer: ProbeResult | None = None
    verdict: JobVerdict | None = None
    scripts: ScriptOutcomes | None = None
    is_interrupted: bool = False


def plan_of(request: Request, options: PreflightOptions) -> PreflightPlan:
    """The plan of one check.

    Raises:
        UsageError: a launch line beside saved facts, which would not be judged.
    """
    if request.facts is not None and request.launch is not None:
        raise UsageError(
            "--facts judges a saved machine without a launch line; judge the line with ddpdoctor lint -- …"
        )
    plan = PreflightPlan(request, options, _line(request))
    if options.is_alone or request.facts is not None:
        return plan
    from ddpdoctor.app.job_to_meet import job_to_meet

    return replace(plan, job=job_to_meet(plan.line, os.environ))


def _line(request: Request) -> tuple[Facts, tuple[Rule, ...]] | None:
    """The launch command after `--` as facts, with the rules that judge it; None without one."""
    if request.launch is None or request.facts is not None:
        return None
    from ddpdoctor.app.lint_lines import facts_of, rules_of

    # Rules for the environment that also take a section of the machine are judged with the machine's facts.
    rules = (
        rule for rule in rules_of(request) if "launch" in (*rule.needs, *rule.wants) or not {*rule.wants} & {*SECTIONS}
    )
    from ddpdoctor.app.line_startup import with_startup

    return with_startup(facts_of(request, [], None), request), tuple(rules)


def rules_of_machine(plan: PreflightPlan) -> tuple[Rule, ...]:
    """The rules of this machine: with a launch command, without those that judge the command, or, if it starts ranks,
    those of a running process.
    """
    from ddpdoctor.app.job_to_meet import starts_ranks
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.rules import CauseScope

    request = plan.request
    rules = rules_for(request, (*SECTIONS, "launch", *(("probe",) if plan.probes or request.facts else ())))
    if plan.job is None and request.facts is None:
        rules = tuple(rule for rule in rules if "nodes" not in rule.needs)
    if plan.line is not None:
        judged = {rule.code for rule in plan.line[1]}
        is_rank = not starts_ranks(plan.line[0])
        return tuple(
            rule for rule in rules if rule.code not in judged and (is_rank or rule.scope is not CauseScope.PROCESS)
        )
    if request.facts is not None:
        return rules
    without = {"launch"} if plan.job is not None or plan.probes else {"launch", "probe"}
    return tuple(rule for rule in rules if not without & set(rule.needs))


def judge_scripts_of(line: Facts, machine: Facts, request: Request) -> ScriptOutcomes:
    """The findings in the script that the launch command starts, with the GPUs of this machine taken into account."""
    from ddpdoctor.app.lint_scripts import ScriptOutcomes, judge_scripts
    from ddpdoctor.collectors.script import Scripts

    if line.launch is None or all(each.script is None for each in line.launch.lines):
        return ScriptOutcomes()
    return judge_scripts(Scripts(), line.launch.lines, replace(machine, launch=line.launch), request)
