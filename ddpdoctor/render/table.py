"""The report as a person reads it on a terminal: the cause first, with its place and what to type."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpdoctor.examined import ExaminedJob
from ddpdoctor.findings import Finding, Report, Role, Severity, Verdict
from ddpdoctor.render.blocks import Block, blocks_of, hidden_in
from ddpdoctor.render.difference_rows import difference_rows
from ddpdoctor.render.excerpts import COLOURS, excerpt_lines
from ddpdoctor.render.job_list import MOST_JOBS_IN_FULL, job_heading, job_table
from ddpdoctor.render.places import place_beside
from ddpdoctor.render.plain import printable
from ddpdoctor.render.section_rows import section_rows
from ddpdoctor.render.summary import summary
from ddpdoctor.wording import counted

__all__ = ["write"]

MOST_EVIDENCE = 6
MOST_CONSEQUENCES = 5
MOST_LEFT_OUT = 3
"""Places that were not examined; of more, only the number is given."""
MOST_EXCERPTS = 20
"""With more findings than that, only their places are listed."""
LONGEST_WHY = 300
LONGEST_QUOTE = 400
FIX_STYLE = "bold green"

AFTER_THE_JOB = ("triage", "hang", "run")
"""Commands about a job that ran: their findings say CAUSE instead of error."""
READ_BY = {
    "triage": "triage reads logs, folders of logs, dumps, error files, kernel logs, and saved reports",
    "lint": "lint reads training scripts, notebooks, shell and sbatch files, Kubernetes manifests, and launch lines",
    "hang": "hang examines ranks; without a PID it finds those of this node",
}
"""What a command would have understood."""
NEXT = {
    "triage": "next: name the output of the job: slurm-JOBID.out (`scontrol show job JOBID` has its path), `kubectl logs POD`; "
    "or start the job with `ddpdoctor run -- LAUNCH`, which keeps its output",
    "lint": "next: name the file that starts the job, or pass the line itself: `ddpdoctor lint -- torchrun train.py`; "
    "for a chart: `helm template . | ddpdoctor lint -`",
    "hang": "next: `ddpdoctor hang` without a PID",
}
"""What to type after an input that was not understood."""
LABELS = {Severity.ERROR: "CAUSE", Severity.WARNING: "warning", Severity.NOTE: "note"}


def write(report: Report, *, width: int = 100, colour: bool = False, quiet: bool = False, verbose: bool = False) -> str:
    """Findings as blocks, then the sections of a preflight and one line that sums up, at most `width` columns wide.

    Only the commands to paste may be wider: each is alone on its line and never wrapped. `quiet` leaves out everything except
    findings; `verbose` adds evidence, harmless findings and the counts of rules.
    """
    out = io.StringIO()
    console = Console(
        markup=False,
        emoji=False,
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        _environ={},
    )
    _Screen(console, report, is_quiet=quiet, is_verbose=verbose).show()
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


class _Screen:
    """One report on one console."""

    def __init__(self, console: Console, report: Report, *, is_quiet: bool, is_verbose: bool) -> None:
        self._console = console
        self._report = report
        self._is_quiet = is_quiet
        self._is_verbose = is_verbose
        self._blocks = blocks_of(report, is_verbose=is_verbose)
        self._excerpts_left = MOST_EXCERPTS

    def show(self) -> None:
        """Everything, in the order in which it is read."""
        if not self._is_quiet and not self._names_its_subject():
            self._print(self._subject())
        jobs = self._report.jobs
        if self._report.is_interrupted:
            self._show_failures()
        is_short = len(jobs) > MOST_JOBS_IN_FULL
        if is_short and not self._is_quiet:
            self._show_jobs(jobs)
        if len(jobs) <= MOST_JOBS_IN_FULL or self._is_verbose or self._is_quiet:
            self._show_blocks()
        if len(jobs) > 1 and not is_short and not self._is_quiet:
            named = {finding.job for block in self._blocks for finding in block.findings}
            self._show_jobs([job for job in jobs if job.name not in named])
        if not self._report.is_interrupted:
            self._show_failures()
        if self._is_quiet:
            return
        self._show_differences()
        for row in section_rows(self._report, self._console.width, is_verbose=self._is_verbose):
            self._print(row)
        for line in summary(self._report, is_verbose=self._is_verbose):
            self._print(line)

    def _subject(self) -> Text:
        """What was examined, and the verdict where it is a good one: a preflight has sections below it."""
        subject = Text(printable(self._report.subject), style="bold")
        if self._report.sections and self._report.verdict is Verdict.PASS:
            subject.append(" · ", style="not bold").append("pass", style="bold green")
        return subject

    def _show_jobs(self, jobs: Sequence[ExaminedJob]) -> None:
        for line in job_table(self._report, jobs, self._console.width):
            self._print(line)
        if jobs:
            self._space()

    def _names_its_subject(self) -> bool:
        """Whether the first finding shows the only thing that was read."""
        inputs = self._report.inputs
        if not self._report.subject or (inputs and not any(source.is_understood for source in inputs)):
            return True
        excerpt = self._blocks[0].first.excerpt if self._blocks else None
        if excerpt is None or self._report.jobs:
            return False
        return not excerpt.is_numbered or sum(source.is_named for source in self._report.inputs) == 1

    def _show_blocks(self) -> None:
        jobs = {job.name: job for job in self._report.jobs} if len(self._report.jobs) > 1 else {}
        shown: str | None = None
        is_first = True
        for block in self._blocks:
            is_short = block.first.worst is Severity.NOTE and not self._is_verbose
            if block.first.job in jobs and block.first.job != shown:
                shown = block.first.job
                self._print(job_heading(jobs[shown or ""]))
            elif not is_first and not is_short:
                self._space()
            self._show_block(block, is_short=is_short)
            is_first = False
        if self._blocks and not self._is_quiet:
            self._show_hidden()
            self._space()

    def _show_hidden(self) -> None:
        count = 0 if self._is_verbose else len(hidden_in(self._report))
        if count:
            self._indented(Text(f"{counted(count, 'harmless message')} hidden (-v shows them)", style="dim"))

    def _show_block(self, block: Block, *, is_short: bool) -> None:
        first = block.first
        if first.group and block.others:
            self._print(Text.assemble((printable(first.group), "bold"), f": {counted(len(block.findings), 'finding')}"))
        for finding in block.alike:
            self._show_head(finding)
            if not is_short:
                self._show_source(finding)
        if is_short:
            return
        self._show_fixes(block)
        for finding in block.alike:
            self._show_quote(finding)
        self._show_consequences(block)
        self._labelled("=", _short(first.why) if not self._is_verbose else first.why, "dim")
        if self._is_verbose:
            for finding in block.findings:
                self._show_evidence(finding)
        for other in block.others:
            self._indented(Text("also ", style="dim").append_text(self._head(other)), hanging=7)

    def _head(self, finding: Finding) -> Text:
        severity = finding.worst
        is_late = self._report.command in AFTER_THE_JOB and finding.role is not Role.CONSEQUENCE
        spot = place_beside(finding, self._report.host)
        if is_late:
            head = Text().append(LABELS[severity], style=COLOURS[severity.value])
            head.append(f"[{printable(finding.code)}]", style="not bold dim")
            head.append(f" {printable(finding.text)}", style="bold default")
            spot = _place_of_quote(finding) if finding.quote and finding.quote in finding.text else spot
            spot = ", ".join(words for words in (finding.unsaid_process, spot) if words)
            return head.append(f" ({printable(spot)})" if spot else "", style="not bold dim")
        head = Text(f"{printable(spot)} " if spot else "")
        head.append(severity.value, style=COLOURS[severity.value])
        head.append(f"[{printable(finding.code)}]", style="dim")
        if finding.role is Role.CONSEQUENCE:
            head.append(f" (follows from {printable(finding.caused_by or 'another fault')})", style="dim")
        return head.append(": ").append(printable(finding.text), style="bold")

    def _show_head(self, finding: Finding) -> None:
        self._print(self._head(finding), hanging=2)

    def _show_source(self, finding: Finding) -> None:
        if finding.excerpt is not None and self._excerpts_left > 0:
            self._excerpts_left -= 1
            for line in excerpt_lines(finding, self._console.width):
                self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def _show_quote(self, finding: Finding) -> None:
        """The decisive line of the log, with its place."""
        if not finding.quote or finding.quote in finding.text or self._report.command not in AFTER_THE_JOB:
            return
        spot = _place_of_quote(finding)
        line = Text(f"{printable(spot)} | " if spot else "| ", style="dim")
        self._indented(line.append(printable(finding.quote[:LONGEST_QUOTE]), style="not dim"), hanging=2)

    def _show_consequences(self, block: Block) -> None:
        most = len(block.consequences) if self._is_verbose else MOST_CONSEQUENCES
        for finding in islice(block.consequences, most):
            spot = place_beside(finding, self._report.host)
            line = Text("then ", style="dim").append(printable(finding.text), style="not dim")
            line.append(f" ({printable(spot)})" if spot else "", style="dim")
            if not self._is_verbose:
                line.truncate(max(10, self._console.width - len(finding.code) - 4), overflow="ellipsis")
            self._indented(
                line.append(f" {printable(finding.code)}", style="dim"), hanging=4 if self._is_verbose else 0
            )
        more = len(block.consequences) - most
        if more > 0:
            self._indented(Text(f"and {counted(more, 'more consequence')} (-v shows them)", style="dim"))

    def _show_fixes(self, block: Block) -> None:
        commands = _commands(block)
        label = f"fix{_scope(block.first)}:"
        advice = block.first.fix
        if commands and not self._is_verbose:
            advice = _first_sentence(advice, self._console.width - len(label) - 3)
        if advice:
            self._labelled(label, advice, FIX_STYLE)
        elif commands:
            self._indented(Text(label, style=FIX_STYLE))
        for on, command in commands:
            if on:
                self._indented(Text(f"on {printable(on)}:", style=FIX_STYLE))
            for line in command.splitlines():
                self._console.print(Text(printable(line), style="bold"), soft_wrap=True)

    def _show_evidence(self, finding: Finding) -> None:
        for evidence in finding.evidence[:MOST_EVIDENCE]:
            expected = f", expected {evidence.expected}" if evidence.expected else ""
            self._labelled("seen:", f"{evidence.path} = {evidence.seen.strip() or 'nothing'}{expected}", "dim")
        more = len(finding.evidence) - MOST_EVIDENCE
        if more > 0:
            self._labelled("seen:", f"{more} more (--format json lists them)", "dim")

    def _show_differences(self) -> None:
        rows = list(difference_rows(self._report, is_verbose=self._is_verbose))
        for text, place in rows:
            self._print(Text(text).append(place, style="dim"), hanging=4)
        if rows:
            self._space()

    def _show_failures(self) -> None:
        for crash in self._report.crashed:
            text = f"error: the rule {crash.code} crashed: {crash.error} (a bug in ddpdoctor, not in the job)"
            self._print(Text(printable(text), style="magenta"), hanging=2)
        said = {f"{each.path}: {each.reason}".lower() for each in self._report.not_understood}
        for failure in self._report.failures:
            if failure.lower() not in said:
                self._print(Text.assemble(("error: ", "bold magenta"), printable(failure)), hanging=2)
        for examined in self._report.not_understood:
            text = f"{printable(examined.path)}: {printable(examined.reason or 'not understood')}"
            self._print(Text.assemble(("not judged: ", "bold magenta"), text), hanging=2)
        if self._report.not_understood and self._report.command in READ_BY:
            self._print(Text(NEXT[self._report.command]), hanging=6)
            self._print(Text(READ_BY[self._report.command], style="dim"))
        left_out = [reason for source in self._report.inputs if source.is_understood for reason in source.left_out]
        for reason in left_out[:MOST_LEFT_OUT]:
            self._print(Text.assemble(("not examined: ", "magenta"), printable(reason)), hanging=2)
        if len(left_out) > MOST_LEFT_OUT:
            more = f"not examined: {len(left_out) - MOST_LEFT_OUT} more (--format json lists them)"
            self._print(Text(more, style="dim"))

    def _labelled(self, label: str, text: str, style: str) -> None:
        """A label and its text, whose further lines begin below the first; nothing without a text."""
        if text:
            grid = Table.grid(padding=(0, 1, 0, 0))
            grid.add_column(no_wrap=True, width=1)
            grid.add_column(no_wrap=True, style=style)
            grid.add_column(overflow="fold")
            grid.add_row("", printable(label), Text(printable(text)))
            self._console.print(grid)

    def _indented(self, text: Text, *, hanging: int = 0) -> None:
        self._print(text, first=2, hanging=2 + hanging)

    def _print(self, text: Text, *, first: int = 0, hanging: int = 0) -> None:
        """Print a paragraph; its further lines begin `hanging` columns from the left."""
        room = max(10, self._console.width - max(first, hanging))
        lines = text.wrap(self._console, room, overflow="fold")
        for at, line in enumerate(lines):
            self._console.print(Text(" " * (hanging if at else first)).append_text(line), no_wrap=True, crop=False)

    def _space(self) -> None:
        self._console.print()


def _commands(block: Block) -> list[tuple[str, str]]:
    """The commands of the findings, each once, with the node that it is for if they differ."""
    found: dict[tuple[str, str], None] = {}
    for finding in block.alike:
        if finding.fix_commands:
            found.update({(fix_command.on, fix_command.command): None for fix_command in finding.fix_commands})
        elif finding.fix_command:
            found[("", finding.fix_command)] = None
    if len(found) == 1 and block.first.fix_commands:
        return [("", command) for _, command in found]
    return list(found)


def _scope(finding: Finding) -> str:
    """Where the only command is to be run."""
    on = {command.on for command in finding.fix_commands}
    return f" ({printable(on.pop())})" if len(on) == 1 else ""


def _place_of_quote(finding: Finding) -> str:
    """`slurm.out:14`: the place of the decisive line of the log; "" if the evidence does not have it."""
    return next(
        (each.path for each in finding.evidence if each.seen and finding.quote.startswith(each.seen.rstrip("…"))), ""
    )


def _first_sentence(text: str, room: int) -> str:
    """The first sentence, above a command that says the rest; "" if it does not fit on one line."""
    sentence = text.partition(". ")[0].rstrip(".")
    return sentence if cell_len(sentence) <= room else ""


def _short(text: str) -> str:
    """The first sentences of a long text: `ddpdoctor explain` has the rest."""
    if len(text) <= LONGEST_WHY:
        return text
    cut = text.rfind(". ", 0, LONGEST_WHY)
    return text[: cut + 1] if cut > 0 else text[: LONGEST_WHY - 1].rsplit(" ", 1)[0] + "…"
