"""Files that other tools printed, judged by the rules that judge a machine; each finding points at the line that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from ddpdoctor.app.excerpts import excerpt_of_text
from ddpdoctor.causality.arrange import arrange
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.comparable_properties import node_of
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.facts.partial import Reads, guarded
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.topo import Topo
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Finding, Report, Skipped, seconds_since, time_of
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import CauseScope, Rule, area_of
from ddpdoctor.rules.probe.probe005_to_009_017_504_rank_failed import collective_value_wrong
from ddpdoctor.rules.probe.probe011_to_015_speed import bandwidth_below_expected
from ddpdoctor.tool_output.hosts import by_host
from ddpdoctor.tool_output.merge import ToolFacts, facts_of
from ddpdoctor.tool_output.readers import records_of
from ddpdoctor.tool_output.record import Record
from ddpdoctor.tool_output.topics import topics_of
from ddpdoctor.wording import counted

__all__ = ["AREAS", "ToolReport", "examine_tool_files", "machines_in", "node_of_files"]

AREAS = ("gpu", "topo", "net", "host", "versions", "environ", "probe")
_EMPTY: dict[str, Callable[[], Any]] = {"gpu": Gpu, "topo": Topo, "net": Net, "host": Host, "versions": Versions}
OF_MEASUREMENTS = (collective_value_wrong.code, bandwidth_below_expected.code)
"""The causes of the probe that the results of nccl-tests show as well."""
NOTHING_JUDGED = "shows no state that can be judged"


@dataclass
class ToolReport:
    """The report about files of tools, and what each file is."""

    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    crashed: tuple[str, ...] = ()
    inputs: dict[str, ExaminedInput] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    machines: tuple[ToolFacts, ...] = ()
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def subject(self) -> str:
        """What was examined, in one line."""
        read = [source for source in self.inputs.values() if source.is_understood]
        topics = f"; examined: {', '.join(self.topics)}" if self.topics else ""
        if len(self.inputs) == 1:
            only = next(iter(self.inputs.values()))
            return f"{only.path}: {only.reason}{topics if read else ''}"
        hosts = [machine.host for machine in self.machines if machine.host]
        of_hosts = f" of {', '.join(hosts[:4])}{', …' if len(hosts) > 4 else ''}" if hosts else ""
        return f"{counted(len(self.inputs), 'file')}{of_hosts}, {len(read)} understood{topics}"


def machines_in(texts: Iterable[tuple[str, str]]) -> tuple[tuple[ToolFacts, ...], dict[str, tuple[Record, ...]]]:
    """The machines that texts of files describe, and the records of each file; files without any are left out.

    Raises:
        FactsError: a reader made a value of the wrong type, which is an error of ddpdoctor.
    """
    records = {name: found for name, text in texts if (found := records_of(text))}
    judged = [(name, [record for record in found if record.refusal is None]) for name, found in records.items()]
    groups = by_host([each for each in judged if each[1]])
    return tuple(facts_of(host, own) for host, own in groups.items()), records


def examine_tool_files(
    texts: Sequence[tuple[str, str]], rules: Sequence[Rule], named: Iterable[str] = ()
) -> ToolReport:
    """The report about the texts of files, by name.

    Args:
        texts: the names and texts of the files.
        rules: the selected rules.
        named: the files that the user named.
    """
    machines, records = machines_in(texts)
    lines = {name: text.replace("\r\n", "\n").split("\n") for name, text in texts if name in records}
    report = ToolReport(machines=machines)
    reads_of_passed: set[str] = set()
    judged_files: set[str] = set()
    for machine in machines:
        outcome, known = _judged(machine, rules, lines)
        report.outcome.add(outcome)
        reads_of_passed |= known
        if topics_of(known) or outcome.findings:
            judged_files |= {sourced.file for sourced in machine.records}
    if len(machines) > 1:
        report.outcome.add(_compared(machines, rules))
    _settle(report, rules)
    report.topics = topics_of(reads_of_passed)
    given = set(named)
    for name, own in records.items():
        report.inputs[name] = _input(name, own, len(lines[name]), name in judged_files, name in given)
    return report


def _settle(report: ToolReport, rules: Sequence[Rule]) -> None:
    """The findings in order, and each code in one list."""
    report.findings = arrange(report.outcome.findings, CausalGraph(rules))
    found = {finding.code for finding in report.findings}
    report.passed = tuple(dict.fromkeys(code for code in report.outcome.passed if code not in found))
    settled = found.union(report.passed)
    report.skipped = tuple({s.code: s for s in report.outcome.skipped if s.code not in settled}.values())


def _judged(machine: ToolFacts, rules: Sequence[Rule], lines: dict[str, list[str]]) -> tuple[Outcome, set[str]]:
    """What the rules say about one machine, and the fields that those read which passed."""
    reads, total, known = Reads(), Outcome(), set[str]()
    facts = machine.guarded(reads)
    has_variables = facts.environ is not None
    facts = replace(facts, environ=facts.environ or Environ())
    for rule in rules:
        if not _applies(rule, has_variables=has_variables):
            continue
        reads.clear()
        own = judge(_with_needs(facts, rule, reads), [rule])
        if own.passed and (reads.unknown or not (reads.known or has_variables)):
            missing = min(reads.unknown, default="")
            reason = f"no file shows {missing}" if missing else "no file shows what it examines"
            own.passed, own.skipped = [], [Skipped(rule.code, reason)]
        if own.passed or own.findings:
            known |= reads.known
        own.skipped = [_skip(each) for each in own.skipped]
        own.findings = [_placed(finding, machine, lines) for finding in own.findings]
        total.add(own)
    return total, known


def _with_needs(facts: Facts, rule: Rule, reads: Reads) -> Facts:
    """The facts with an unknown section in place of each that the rule needs and no file shows. Only rules about
    measurements see those of nccl-tests.
    """
    unknown = {
        name: guarded(_EMPTY[name](), name, (), reads)
        for name in rule.needs
        if name in _EMPTY and getattr(facts, name) is None
    }
    return replace(facts, probe=facts.probe if area_of(rule.code) == "probe" else None, **unknown)


def _skip(skip: Skipped) -> Skipped:
    """A skip because of what files do not show makes nothing incomplete: what they show was examined."""
    return Skipped(skip.code, "no file shows what it examines" if skip.reason == "not collected" else skip.reason)


def _applies(rule: Rule, *, has_variables: bool) -> bool:
    if rule.is_of_logs:
        return False
    area = area_of(rule.code)
    if area == "probe":
        return rule.code in OF_MEASUREMENTS
    return has_variables or area not in ("environ", "launch")


def _placed(finding: Finding, machine: ToolFacts, lines: dict[str, list[str]]) -> Finding:
    """The finding with the machine, and with the line that shows its first piece of evidence."""
    finding = _by_address(finding, machine)
    where = replace(finding.where, host=finding.where.host or machine.host or None)
    places = (machine.place_of(each.path, each.seen) for each in finding.evidence)
    place = next((each for each in places if each is not None), None)
    if place is None:
        return replace(finding, where=where)
    placed = replace(finding, where=replace(where, file=place.file, line=place.line))
    return replace(placed, excerpt=excerpt_of_text(placed, lines.get(place.file, [])))


def _by_address(finding: Finding, machine: ToolFacts) -> Finding:
    """A finding about one GPU whose number no file shows, with the address of the GPU in place of the number."""
    address = machine.unnumbered.get(-1 if finding.where.gpu is None else finding.where.gpu)
    if address is None:
        return finding
    message = re.sub(rf"\bGPU {finding.where.gpu}\b", f"the GPU at {address}", finding.message)
    return replace(finding, message=message, where=replace(finding.where, gpu=None), fix_command=None)


def node_of_files(machine: ToolFacts) -> Node:
    """A machine in the form that other nodes compare: properties that no file shows are left out."""
    node = node_of(machine.facts)
    told = {path.partition("[")[0] for path in machine.places}
    unknown = {"host.container"} - told | ({"gpu.nvml_error"} if machine.facts.gpu is None else set())
    if machine.facts.versions is None or machine.facts.versions.torch is None:
        unknown |= {"versions.torch", "versions.build"}
    if any(not sourced.record.is_whole for sourced in machine.records):
        unknown |= {"gpu.count", "gpu.model", "gpu.memory"}
    return replace(node, traits={name: value for name, value in node.traits.items() if name not in unknown})


def _compared(machines: Sequence[ToolFacts], rules: Sequence[Rule]) -> Outcome:
    """What differs between the machines."""
    nodes = Nodes(nodes=tuple(map(node_of_files, machines)), expected=len(machines))
    facts = Facts(schema=SCHEMA, collected_at="", hostname="", nodes=nodes)
    outcome = judge(facts, [rule for rule in rules if rule.scope is CauseScope.FACTS_OF_NODES])
    return Outcome(findings=outcome.findings, crashed=outcome.crashed)


def _input(name: str, records: Sequence[Record], lines: int, is_judged: bool, is_named: bool) -> ExaminedInput:
    """What one file is: the tools that printed it, or why it is not judged."""
    shown = dict.fromkeys(f"{record.tool} ({record.about})" for record in records if record.refusal is None)
    words = ", ".join(list(shown)[:4]) + (", …" if len(shown) > 4 else "")
    refusals = dict.fromkeys(f"{record.tool}: {record.refusal}" for record in records if record.refusal is not None)
    reason = f"{words} {NOTHING_JUDGED}" if shown and not is_judged else words or "; ".join(refusals)
    return ExaminedInput(
        path=name,
        kind=next((record.tool for record in records if record.refusal is None), records[0].tool).partition(" -")[0],
        is_understood=bool(shown) and is_judged,
        lines=lines,
        reason=reason,
        is_named=is_named,
    )


def report_of(tools: ToolReport, command: str, started: float) -> Report:
    """A whole report about files of tools alone."""
    return Report(
        command=command,
        host="",
        started_at=time_of(started),
        seconds=seconds_since(started),
        findings=tools.findings,
        passed=tools.passed,
        skipped=tools.skipped,
        crashed=tuple(tools.outcome.crashed),
        inputs=tuple(tools.inputs.values()),
        subject=tools.subject,
    )
