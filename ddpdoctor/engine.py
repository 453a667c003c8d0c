"""The engine: facts and rules in, a report out. Each rule ends as findings, passed, skipped or crashed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from ddpdoctor.causality.arrange import arrange, in_order
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.facts.gaps import CannotLook, Gap, Why
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.unseen import guarded, unseen
from ddpdoctor.findings import Certainty, Crashed, Finding, Report, Role, Severity, Skipped, seconds_since, time_of
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import Rule, area_of

__all__ = ["Outcome", "examine", "extended", "judge", "retold", "united"]


@dataclass(slots=True)
class Outcome:
    """The outcomes of rules, before they become a report."""

    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    crashed: list[Crashed] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add the outcomes of other rules."""
        self.findings += other.findings
        self.passed += other.passed
        self.skipped += other.skipped
        self.crashed += other.crashed


def examine(
    facts: Facts,
    rules: Iterable[Rule],
    *,
    command: str,
    started: float,
    failures: tuple[str, ...] = (),
    beside: tuple[Facts, tuple[Rule, ...]] | None = None,
) -> Report:
    """Judge `facts` by `rules`.

    Args:
        command: the ddpdoctor command, for the report.
        started: `time.monotonic()` when the command began.
        failures: what ddpdoctor itself could not do.
        beside: other facts with their own rules (a launch line beside the machine), in the same report.
    """
    rules = tuple(rules)
    outcome = judge(facts, rules)
    if beside is not None:
        outcome.add(judge(*beside))
        rules += beside[1]
    return Report(
        command=command,
        host=facts.hostname,
        started_at=time_of(started),
        seconds=seconds_since(started),
        findings=_arranged(outcome.findings, rules, facts),
        passed=tuple(outcome.passed),
        skipped=tuple(outcome.skipped),
        crashed=tuple(outcome.crashed),
        failures=(*failures, *(f"the probe did not finish: {words}" for words in _out_of_time(facts))),
    )


def _out_of_time(facts: Facts) -> tuple[str, ...]:
    return facts.probe.out_of_time if facts.probe is not None else ()


def judge(facts: Facts, rules: Iterable[Rule]) -> Outcome:
    """Run each rule once over the facts that it needs. Causes that only logs show are left out without logs."""
    outcome = Outcome()
    rules = tuple(rules)
    facts, broken_job = _with_job(facts, rules)
    unseen_fields = _unseen_fields(facts)
    for each in sorted(rules, key=lambda each: each.is_last_resort):
        if each.is_last_resort and any(map(_explains, outcome.findings)):
            outcome.passed.append(each.code)
            continue
        if each.is_of_logs and facts.log is None:
            continue
        if broken_job and _takes_job(each):
            outcome.crashed.append(Crashed(each.code, broken_job))
            continue
        missing = next((name for name in each.needs if _section(facts, name) is None), None)
        if missing is not None:
            gap = _gap(facts, missing)
            outcome.skipped.append(Skipped(each.code, gap.reason, gap.why is Why.UNANSWERED))
            continue
        findings: list[Finding] = []
        seen: dict[str, str] = {}
        try:
            arguments = {name: _section(facts, name) for name in (*each.needs, *each.wants)}
            if unseen_fields:
                arguments = _guarded(arguments, unseen_fields, seen)
            findings.extend(_yielded(each, arguments))
        except CannotLook as skip:
            outcome.skipped.append(Skipped(each.code, skip.reason, skip.why is Why.UNANSWERED))
        except Exception as error:  # a bug in one rule must not affect the others: it is reported as crashed
            outcome.crashed.append(Crashed(each.code, f"{type(error).__name__}: {error}"))
        else:
            outcome.findings.extend(findings)
            if not findings and seen:
                outcome.skipped.append(Skipped(each.code, next(iter(seen.values())), unanswered=True))
            elif not findings:
                outcome.passed.append(each.code)
    return outcome


def _unseen_fields(facts: Facts) -> dict[str, dict[str, str]]:
    """By section, the fields that no rule may take for facts, because the part of the system that shows them is missing."""
    unseen_fields = {}
    for name in ("environ", "host", "net", "gpu", "topo", "versions"):
        section = getattr(facts, name)
        fields = {} if section is None else unseen(section, name)
        unseen_fields.update({name: fields} if fields else {})
    return unseen_fields


def _guarded(
    arguments: dict[str, object], fields: dict[str, dict[str, str]], seen: dict[str, str]
) -> dict[str, object]:
    """A rule's arguments, guarded: `seen` gets the fields that it reads and that nobody could examine."""
    found = {
        name: guarded(value, fields[name], seen) if name in fields and value is not None else value
        for name, value in arguments.items()
    }
    if isinstance(whole := found.get("facts"), Facts):
        found["facts"] = replace(
            whole, **{name: guarded(getattr(whole, name), own, seen) for name, own in fields.items()}
        )
    return found


def _yielded(each: Rule, arguments: dict[str, object]) -> list[Finding]:
    """What a rule finds. What it found before it could not look any further stays found.

    Raises:
        CannotLook: it could not decide, and had found nothing.
    """
    found: dict[Finding, None] = {}
    try:
        for finding in each.check(**arguments) or ():
            found.setdefault(finding)
    except CannotLook:
        if not found:
            raise
    return [_stamp(each, finding) for finding in found]


def _explains(finding: Finding) -> bool:
    """Whether a rule of last resort is not needed."""
    is_open = finding.worst is Severity.WARNING and finding.where.file is not None and finding.role is None
    return (finding.worst is Severity.ERROR or is_open) and finding.role is not Role.NOISE


def extended(
    report: Report, outcomes: Iterable[Outcome], rules: Iterable[Rule], failures: tuple[str, ...] = ()
) -> Report:
    """The report with the outcomes of the same rules for other facts; equal findings once, each code in one list."""
    total = Outcome(list(report.findings), list(report.passed), list(report.skipped), list(report.crashed))
    for outcome in outcomes:
        total.add(outcome)
    findings = _once(total.findings)
    told = {f.code for f in findings} | {c.code for c in total.crashed}
    passed = tuple(sorted(set(total.passed) - told))
    settled = told.union(passed)
    return replace(
        report,
        findings=arrange(findings, CausalGraph(rules)),
        passed=passed,
        skipped=tuple({s.code: s for s in total.skipped if s.code not in settled}.values()),
        crashed=tuple(dict.fromkeys(total.crashed)),
        failures=(*report.failures, *failures),
    )


def retold(report: Report, told: Sequence[Finding]) -> Report:
    """The report with the findings of saved reports, which keep their roles and, among equals, their order."""
    findings = sorted(_once([*report.findings, *told]), key=in_order)
    codes = {f.code for f in findings}
    return replace(
        report,
        findings=tuple(findings),
        passed=tuple(c for c in report.passed if c not in codes),
        skipped=tuple(s for s in report.skipped if s.code not in codes),
    )


def united(reports: Sequence[Report]) -> Report:
    """The reports about several jobs as one, the worst job first: roles are kept, and each code is in one list."""
    findings = tuple(sorted((f for report in reports for f in report.findings), key=in_order))
    crashed = tuple(dict.fromkeys(c for report in reports for c in report.crashed))
    told = {f.code for f in findings} | {c.code for c in crashed}
    passed = {code for report in reports for code in report.passed} - told
    skipped = {s.code: s for report in reports for s in report.skipped if s.code not in told | passed}
    return replace(
        reports[0],
        findings=findings,
        passed=tuple(code for code in dict.fromkeys(c for report in reports for c in report.passed) if code in passed),
        skipped=tuple(skipped.values()),
        crashed=crashed,
        failures=tuple(dict.fromkeys(failure for report in reports for failure in report.failures)),
    )


def _once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Equal findings about one job, once."""
    return tuple({(f.identity, f.about, f.undetermined, f.where, f.job): f for f in reversed(findings)}.values())[::-1]


def _arranged(findings: Iterable[Finding], rules: Iterable[Rule], facts: Facts) -> tuple[Finding, ...]:
    graph = CausalGraph(rules)
    if facts.log is None:
        return arrange(findings, graph)
    from ddpdoctor.causality.log_order import arrange_log  # only triage reads logs

    return arrange_log(findings, graph, facts.log)


def _takes_job(each: Rule) -> bool:
    return "job" in (*each.needs, *each.wants)


def _with_job(facts: Facts, rules: Iterable[Rule]) -> tuple[Facts, str]:
    """The facts with the job that their launch lines start, if they have none and a rule takes it; and the error
    if that failed, with which these rules crash.
    """
    if facts.launch is None or facts.job is not None or not any(map(_takes_job, rules)):
        return facts, ""
    from ddpdoctor.launch.jobs import job_of_launch  # most commands have no launch line

    try:
        return replace(facts, job=job_of_launch(facts.launch)), ""
    except Exception as error:  # a bug in the model of jobs affects only the rules that take the job
        return facts, f"{type(error).__name__}: {error}"


def _section(facts: Facts, name: str) -> object:
    return facts if name == "facts" else getattr(facts, name)


def _gap(facts: Facts, section: str) -> Gap:
    known = next((g for g in facts.gaps if g.path == section), None)
    return known or Gap(section, _UNASKED.get(section, f"{section}: not collected"), Why.NOT_HERE)


_UNASKED = {
    "probe": "no ranks were probed",
    "launch": "no launch line was given",
    "job": "no launch line was given",
    "submission": "no job file was given",
    "startup": "only check looks up what a launch line starts",
}


def _stamp(each: Rule, finding: Finding) -> Finding:
    softer = finding.severity or each.severity
    if softer.weight > each.severity.weight:
        raise ValueError(f"{each.code} is at most {each.severity.value}, the finding has {softer.value}")
    certainty = finding.certainty
    if each.kind == "umbrella" and each.candidates and certainty is Certainty.CERTAIN and finding.role is None:
        certainty = Certainty.CANDIDATES
    page = f"docs/rules/{area_of(each.code)}.md#{each.code.lower()}"
    return replace(
        finding,
        code=each.code,
        name=each.name,
        severity=Severity(softer),
        why=finding.why or each.why,
        fix=finding.fix or each.fix,
        help=page,
        certainty=certainty,
        candidates=finding.candidates or (each.candidates if certainty is Certainty.CANDIDATES else ()),
    )
