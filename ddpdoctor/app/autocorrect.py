"""Corrected launch lines: the edits of a finding and of the other errors on the line, as one line to paste."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.app.lint_lines import environ_of
from ddpdoctor.collectors.launch import LocalFiles
from ddpdoctor.engine import judge
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, tidy
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Finding, LineEdit, NodeCommand, Report, Severity
from ddpdoctor.launch.corrections import edited
from ddpdoctor.launch.rendezvous import is_loopback
from ddpdoctor.rules import Rule
from ddpdoctor.rules.launch.pointing import HOST0, correcting, remove, revalue
from ddpdoctor.rules.launch.pointing import replace_word as substitute
from ddpdoctor.rules.launch.pointing import where as place

__all__ = ["MOST_LINES", "Autocorrect", "autocorrected"]

STEPS = 8
MOST_LINES = 20
"""Lines of a job that are corrected together; with more, each finding corrects its own mistake only."""
_SETS = re.compile(r"(?:unset (?P<old>\w+)(?:; )?)?(?:export (?P<word>(?P<new>\w+)=[^\s;]+))?")
"""The commands of the environment's rules: unset a variable, change its value, or rename it."""
_PORT = re.compile(r"export MASTER_PORT=(\d+)")


def autocorrected(report: Report, facts: Facts, rules: tuple[Rule, ...]) -> Report:
    """The report; each `fix_command` also corrects the other errors of its line."""
    launch = facts.launch
    if launch is None or len(launch.lines) > MOST_LINES:
        return report
    autocorrect = Autocorrect(facts, rules)
    if len(launch.nodes) > 1 and len(launch.nodes) == len(launch.lines):
        return replace(report, findings=autocorrect.of_nodes(report.findings, launch))
    return replace(report, findings=tuple(autocorrect.finding(f, launch) for f in report.findings))


class Autocorrect:
    """Corrects lines until these rules find no error that they can correct. A line in one state is judged once."""

    def __init__(self, facts: Facts, rules: tuple[Rule, ...]) -> None:
        self._facts = facts
        self._rules = rules
        self._files = LocalFiles()
        self._judged: dict[tuple[str | None, int | None, int, int, str], list[Finding]] = {}

    def finding(self, finding: Finding, launch: Launch) -> Finding:
        """A finding; its `fix_command` also corrects the other errors of the lines.

        Args:
            launch: the lines that were judged.
        """
        line = _line(finding, launch)
        if line is not None:
            finding = _on_line(finding, line, launch)
        corrections: dict[int, list[SpanEdit]] = {}
        for edit in finding.line_edits:
            corrections.setdefault(edit.line, []).append(SpanEdit(edit.start, edit.end, edit.text))
        if not corrections:
            return _at_its_node(finding, launch)
        known = {finding.code} | {each.code for at in corrections for each in self._findings(launch.lines[at])}
        uncovered: dict[str, Finding] = {}
        lines = [self.line(launch.lines[at], finding.code, edits, uncovered) for at, edits in corrections.items()]
        text = "\n".join(tidy(each.source) for each in lines)
        commands = tuple(NodeCommand(command.on, text) for command in finding.fix_commands)
        fix = _with_uncovered(finding.fix, [each for code, each in uncovered.items() if code not in known])
        return replace(finding, fix=fix, fix_command=text, fix_commands=commands, line_edits=())

    def of_nodes(self, findings: Sequence[Finding], launch: Launch) -> tuple[Finding, ...]:
        """The findings about the nodes of one job, whose commands agree: every line is corrected together with the others."""
        meant = [
            finding if (line := _line(finding, launch)) is None else _on_line(finding, line, launch)
            for finding in findings
        ]
        own = {edit.line for found in meant for edit in found.line_edits}
        together = self._together(launch, ())
        return tuple(self._of_nodes(found, launch, together, own) for found in meant)

    def _of_nodes(
        self, finding: Finding, launch: Launch, together: tuple[LaunchLine, ...], edited_by_others: set[int]
    ) -> Finding:
        if not finding.line_edits:
            return _at_its_node(finding, launch)
        mine = {edit.line for edit in finding.line_edits}
        if finding.worst is not Severity.ERROR:
            together = self._together(launch, finding.line_edits)
        changed = [i for i, line in enumerate(launch.lines) if tidy(line.source) != tidy(together[i].source)]
        kept = [i for i in changed if i in mine or i not in edited_by_others]
        commands = tuple(NodeCommand(f"node {launch.lines[i].node}", tidy(together[i].source)) for i in kept)
        if not commands:
            return replace(finding, fix_command=None, line_edits=())
        fix_command = "\n".join(command.command for command in commands)
        return replace(finding, fix_command=fix_command, fix_commands=commands, line_edits=())

    def _together(self, launch: Launch, edits: Sequence[LineEdit]) -> tuple[LaunchLine, ...]:
        """The corrected lines of a job: what does not agree between them is corrected in all of them at once.

        Args:
            edits: what is corrected first.
        """
        lines = launch.lines
        seen = {tuple(tidy(line.source) for line in lines)}
        for _ in range(STEPS + 1):
            wanted = tuple(edits) or tuple(self._edits_between(launch, lines))
            if not wanted:
                break
            better = tuple(self._edited(line, i, wanted) for i, line in enumerate(lines))
            texts = tuple(tidy(line.source) for line in better)
            if texts in seen:
                break
            lines, edits = better, ()
            seen.add(texts)
        return self._with_host(launch, lines)

    def _edits_between(self, launch: Launch, lines: tuple[LaunchLine, ...]) -> Iterator[LineEdit]:
        """The edits of all errors of the lines of a job; where two overlap, the first ones apply."""
        job = replace(launch, lines=lines)
        startup = self._facts.startup if lines is launch.lines else None
        facts = replace(self._facts, launch=job, environ=environ_of(job), job=None, startup=startup)
        kept: list[LineEdit] = []
        for finding in judge(facts, self._rules).findings:
            line = _line(finding, job)
            found = finding if line is None else _on_line(finding, line, job)
            is_free = not any(_clashes(_spans(found.line_edits, i), _spans(kept, i)) for i in range(len(lines)))
            if found.worst is Severity.ERROR and is_free:
                kept += found.line_edits
        return iter(kept)

    def _edited(self, line: LaunchLine, index: int, edits: Sequence[LineEdit]) -> LaunchLine:
        own = _spans(edits, index)
        return edited(line, own, self._launch.version, self._files) if own else line

    def _with_host(self, launch: Launch, lines: tuple[LaunchLine, ...]) -> tuple[LaunchLine, ...]:
        """The lines with the address that one of the given lines names, in place of its placeholder."""
        hosts = {
            line.plan.host
            for line in launch.lines
            if line.plan is not None and line.plan.host and line.plan.is_multinode and not is_loopback(line.plan.host)
        }
        if len(hosts) != 1 or any(HOST0 in line.source for line in launch.lines):
            return lines
        (host,) = hosts
        spans = [[SpanEdit(m.start(), m.end(), host) for m in re.finditer(HOST0, line.source)] for line in lines]
        return tuple(
            edited(line, own, self._launch.version, self._files) if own else line
            for line, own in zip(lines, spans, strict=True)
        )

    def line(
        self,
        line: LaunchLine,
        code: str = "",
        edits: list[SpanEdit] | None = None,
        corrected: dict[str, Finding] | None = None,
    ) -> LaunchLine:
        """The line that does what this one was meant to do.

        Args:
            code: a cause whose findings are corrected even if they are not errors.
            edits: what is corrected first.
            corrected: filled with the findings that were corrected then, by code.
        """
        seen: set[str] = {tidy(line.source)}
        for _ in range(STEPS + 1):
            kept = edits if edits is not None else self._left(line, code, corrected)
            if not kept:
                break
            better = edited(line, kept, self._launch.version, self._files)
            if tidy(better.source) in seen:
                break
            line, edits = better, None
            seen.add(tidy(line.source))
        return line

    def _left(self, line: LaunchLine, code: str, corrected: dict[str, Finding] | None = None) -> list[SpanEdit]:
        """The edits of all errors of a line that are compatible; where two overlap, the first ones apply."""
        kept: list[SpanEdit] = []
        for finding in self._findings(line):
            if finding.worst is Severity.ERROR or finding.code == code:
                own = [SpanEdit(edit.start, edit.end, edit.text) for edit in finding.line_edits]
                if own and not _clashes(own, kept):
                    kept += own
                    if corrected is not None:
                        corrected.setdefault(finding.code, finding)
        return kept

    def _findings(self, line: LaunchLine) -> list[Finding]:
        """What the rules find in a single line."""
        key = (line.file, line.node, line.first_line, line.first_column, line.source)
        if key not in self._judged:
            alone = replace(self._launch, lines=(line,))
            environ = self._facts.environ if line.file is None else environ_of(alone)
            startup = self._facts.startup if any(line is each for each in self._launch.lines) else None
            facts = replace(self._facts, launch=alone, environ=environ, startup=startup)
            findings = judge(facts, self._rules).findings
            self._judged[key] = [_reassigned(finding, line, alone) for finding in findings]
        return self._judged[key]

    @property
    def _launch(self) -> Launch:
        assert self._facts.launch is not None
        return self._facts.launch


def _with_uncovered(fix: str, uncovered: Sequence[Finding]) -> str:
    """The advice of a finding, and the mistakes that its first correction uncovered and the command corrects as well."""
    if not uncovered:
        return fix
    names = " and ".join(f"{each.code} ({each.name})" for each in uncovered)
    return f"Correct this and {names}. {fix}"


def _at_its_node(finding: Finding, launch: Launch) -> Finding:
    """A finding about one of several nodes, with the command for this node."""
    if finding.fix_command is None or finding.where.node is None or len(launch.nodes) < 2:
        return finding
    return replace(finding, fix_commands=(NodeCommand(f"node {finding.where.node}", finding.fix_command),))


def _line(finding: Finding, launch: Launch) -> LaunchLine | None:
    """The line that a finding is about, None if it is not about one."""
    if len(launch.lines) == 1:
        return launch.lines[0]
    return next((x for x in launch.lines if x.node is not None and x.node == finding.where.node), None)


def _on_line(finding: Finding, line: LaunchLine, launch: Launch) -> Finding:
    """A finding about a variable, corrected on the line where the line sets it or has an option for it."""
    return _reassigned(_with_port(finding, line, launch), line, launch)


def _with_port(finding: Finding, line: LaunchLine, launch: Launch) -> Finding:
    """Another master port, in the line's own option, because launchers overwrite the variable."""
    match = _PORT.fullmatch(finding.fix_command or "")
    starter = line.starter
    if match is None or starter is None:
        return finding
    given = starter.given("master_port") or starter.given("main_process_port")
    endpoint = starter.given("rdzv_endpoint")
    option, value = given, match[1]
    if endpoint is not None and line.plan is not None:
        option, value = endpoint, f"{line.plan.host}:{match[1]}"
    if option is None:
        return finding
    return correcting(replace(finding, where=place(line, option.value_word)), launch, (line, [revalue(option, value)]))


def _reassigned(finding: Finding, line: LaunchLine, launch: Launch) -> Finding:
    """A finding about a variable that the line sets: its place on the line, and the line without it, or with it corrected."""
    name = finding.evidence[0].path.removeprefix("environ.variables.") if finding.evidence else ""
    words = [v.word for layer in line.layers for v in layer.variables if v.name == name and v.word.assignment]
    if not words or len(set(words)) > 1 or words[0] not in line.argv or not finding.code.startswith("ENV"):
        return finding
    match = _SETS.fullmatch(finding.fix_command or "")
    if match is None or (match["old"] or match["new"]) != name:
        return finding
    right = match["word"]
    at = line.argv.index(words[0])
    if right is None and at and line.argv[at - 1].text.startswith("-"):
        return finding  # the value of an option such as mpirun's -x
    edits = list(remove(line, words[0])) if right is None else [substitute(words[0], right)]
    found = correcting(replace(finding, where=place(line, words[0])), launch, (line, edits))
    return finding if found.fix_command is None else found


def _spans(edits: Sequence[LineEdit], index: int) -> list[SpanEdit]:
    """The edits of one line."""
    return [SpanEdit(edit.start, edit.end, edit.text) for edit in edits if edit.line == index]


def _clashes(edits: list[SpanEdit], kept: list[SpanEdit]) -> bool:
    """Whether edits overlap others, or insert at the same place."""
    return any(a.start <= b.end and b.start <= a.end for a in edits for b in kept)
