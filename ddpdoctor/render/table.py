"""The report as a person reads it on a terminal: worst first, and what could not be looked at."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.findings import Finding, Report, Role, Verdict
from ddpdoctor.render.places import place
from ddpdoctor.render.plain import printable

__all__ = ["write"]

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}
VERDICTS = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.INCOMPLETE: "magenta"}
MOST_EVIDENCE = 6
LONGEST_WHY = 300
LONGEST_REASON = 40
SHORTEST_REASON = 16


def write(report: Report, *, width: int = 100, colour: bool = False, quiet: bool = False) -> str:
    """Findings, then what passed and what could not look, at most `width` columns wide.

    Only the commands to paste may be wider: each is alone on its line and never wrapped. `quiet` leaves out the summary.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        _environ={},
    )
    causes = {f.code for f in report.findings if f.role is not Role.CONSEQUENCE}
    told: set[str] = set()
    explained: set[str] = set()
    for finding in report.findings:
        if finding.role is Role.CONSEQUENCE and finding.caused_by in causes:
            continue  # shown under its cause
        _show(console, finding, _novel(finding, told))
        if finding.code not in explained:
            explained.add(finding.code)
            _show_consequences(console, [f for f in report.findings if _follows(f, finding.code)])
        console.print()
    _show_failures(console, report)
    if not quiet:
        _summarise(console, report)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def _follows(finding: Finding, code: str) -> bool:
    return finding.role is Role.CONSEQUENCE and finding.caused_by == code


def _novel(finding: Finding, told: set[str]) -> bool:
    """Whether why and fix were not shown yet: eight GPUs with one fault share them."""
    key = f"{finding.code} {finding.fix}"
    is_new = key not in told
    told.add(key)
    return is_new


def _show(console: Console, finding: Finding, is_novel: bool) -> None:
    console.print(_head(finding))
    _indented(console, Text(printable(finding.text)))
    rows = [("where", place(finding))]
    rows += [("seen", line) for line in _evidence(finding)]
    if is_novel:
        rows += [("why", _short(finding.why)), ("fix", finding.fix)]
    _rows(console, rows)
    if finding.fix_command:
        for line in finding.fix_command.splitlines():
            console.print(Text(printable(line), style="bold"), soft_wrap=True)


def _head(finding: Finding) -> Text:
    head = Text(finding.worst.value, style=COLOURS[finding.worst.value])
    head.append(f" {printable(finding.code)}", style="bold")
    head.append(f" {printable(finding.name)}", style="not bold default")
    if finding.role is Role.CONSEQUENCE:
        head.append(f" (follows from {printable(finding.caused_by or 'another fault')})", style="not bold dim")
    elif finding.role is Role.NOISE:
        head.append(" (harmless)", style="not bold dim")
    return head


def _show_consequences(console: Console, findings: list[Finding]) -> None:
    if not findings:
        return
    _indented(console, Text("from it follows:", style="dim"))
    for finding in findings:
        where = place(finding)
        line = _head_of_consequence(finding)
        line.append(f" {printable(finding.text)}" + (f" ({printable(where)})" if where else ""))
        _indented(console, line, 4)


def _head_of_consequence(finding: Finding) -> Text:
    return Text(f"{finding.worst.value} {printable(finding.code)}", style="dim")


def _evidence(finding: Finding) -> Iterable[str]:
    for each in finding.evidence[:MOST_EVIDENCE]:
        seen = each.seen.strip() or "nothing"
        yield f"{each.path} = {seen}" + (f", expected {each.expected}" if each.expected else "")
    more = len(finding.evidence) - MOST_EVIDENCE
    if more > 0:
        yield f"and {more} more (--format json lists them)"


def _short(text: str) -> str:
    """The first sentences of a long text: `ddpdoctor explain` has the rest."""
    if len(text) <= LONGEST_WHY:
        return text
    cut = text.rfind(". ", 0, LONGEST_WHY)
    return text[: cut + 1] if cut > 0 else text[: LONGEST_WHY - 1].rsplit(" ", 1)[0] + "…"


def _rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    last = ""
    for label, text in rows:
        if text:
            grid.add_row(f"{label}:" if label != last else "", Text(printable(text)))
            last = label
    if grid.row_count:
        _indented(console, grid)


def _indented(console: Console, what: Text | Table, by: int = 2) -> None:
    if isinstance(what, Text):
        what.overflow = "fold"
    console.print(Padding(what, (0, 0, 0, by)))


def _show_failures(console: Console, report: Report) -> None:
    for crash in report.crashed:
        text = f"{crash.code}: {crash.error} (a fault of ddpdoctor, not of the job)"
        console.print(Text.assemble(("crashed ", "bold magenta"), printable(text)), overflow="fold")
    for failure in report.failures:
        console.print(Text.assemble(("could not ", "bold magenta"), printable(failure)), overflow="fold")
    if report.crashed or report.failures:
        console.print()


def _summarise(console: Console, report: Report) -> None:
    verdict = Text(report.verdict.value, style=f"bold {VERDICTS[report.verdict]}")
    verdict.append(f": {_counted(report)}", style="not bold default")
    console.print(verdict, overflow="fold")
    line = f"{_number(len(report.passed), 'rule')} passed"
    if report.skipped:
        line = _with_reasons(f"{line}, {len(report.skipped)} could not look: ", report, max(console.width, 60))
    console.print(Text(printable(line)), overflow="fold")
    if report.findings:
        code = printable(report.findings[0].code)
        console.print(Text(f"more about a finding: ddpdoctor explain {code}", style="dim"), overflow="fold")


def _counted(report: Report) -> str:
    counts = Counter(f.worst.value for f in report.findings)
    told = [_number(counts[word], word) for word in ("error", "warning", "note") if counts[word]]
    return ", ".join(told) or "no findings"


def _number(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _brief(reason: str) -> str:
    """A reason up to its first comma or bracket: enough to be grouped by."""
    clause = re.split(r"[,;(]", " ".join(reason.split()))[0].strip()
    return _cut(clause, LONGEST_REASON)


def _cut(text: str, longest: int) -> str:
    """`text` up to the last word that fits."""
    return text if cell_len(text) <= longest else f"{text[:longest].rpartition(' ')[0] or text[: longest - 1]}…"


def _with_reasons(line: str, report: Report, width: int) -> str:
    """`line` with the reasons for not looking, the most frequent first, as far as one line of `width` holds them."""
    groups = Counter(_brief(s.reason) for s in report.skipped).most_common()
    told = 0
    for index, (reason, count) in enumerate(groups):
        piece = ("; " if index else "") + f"{count} {reason}"
        rest = len(report.skipped) - told - count
        room = width - cell_len(line) - (cell_len(f"; {rest} for other reasons") if rest else 0)
        if cell_len(piece) > room:
            if index:
                return f"{line}; {len(report.skipped) - told} for other reasons"
            if room < SHORTEST_REASON:
                return line.removesuffix(": ")
            piece = _cut(piece, room)
        line += piece
        told += count
    return line
