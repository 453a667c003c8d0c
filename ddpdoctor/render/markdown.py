"""The report as Markdown, for an issue or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpdoctor import __version__
from ddpdoctor.findings import Finding, Report, Role
from ddpdoctor.render.difference_rows import difference_text, heading_of_differences
from ddpdoctor.render.places import place
from ddpdoctor.render.plain import printable

__all__ = ["code", "fenced", "prose", "write"]


def write(report: Report) -> str:
    """Findings with their commands in fences; skipped checks are folded."""
    host = f" on {code(report.host)}" if report.host else ""
    blocks = [
        f"## ddpdoctor {prose(report.command)}: {report.verdict.value}",
        f"{len(report.findings)} findings, {len(report.passed)} rules passed, {len(report.skipped)} checks skipped{host}.",
    ]
    for finding in report.findings:
        blocks += _finding(finding)
    blocks += [*_differences(report), *(f"Unknown: {prose(text)}" for text in report.open_ends), *_failures(report)]
    blocks += [f"Note: {prose(note)}." for note in report.notes]
    if report.skipped:
        rows = table(("code", "reason"), ((prose(s.code), prose(s.reason)) for s in report.skipped))
        blocks += ["<details>", f"<summary>{len(report.skipped)} checks skipped</summary>", rows, "</details>"]
    blocks.append(f"<sub>ddpdoctor {__version__}, {prose(report.started_at)}, {report.seconds} s</sub>")
    return "\n\n".join(blocks) + "\n"


def prose(text: str) -> str:
    """Text on one line without markup: no HTML, links, table cells or `@` mentions."""
    flat = " ".join(printable(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@<!-- -->")
    return re.sub(r"([\\`*_{}\[\]|~$#])", r"\\\1", flat)


def code(text: str) -> str:
    """Text as a code span on one line, also if it contains backticks."""
    flat = " ".join(printable(text).split())
    if not flat:
        return ""
    ticks = "`" * (_longest_run(flat) + 1)
    space = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{space}{flat}{space}{ticks}"


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code, in a fence that it cannot close."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{printable(text)}\n{ticks}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that already are Markdown."""
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _finding(finding: Finding) -> list[str]:
    blocks = [
        f"### {finding.worst.value} {prose(finding.code)} {prose(finding.name)}",
        prose(f"{finding.text} ({finding.unsaid_process})" if finding.unsaid_process else finding.text),
        "\n".join(f"- **{label}**: {text}" for label, text in _remarks(finding) if text),
    ]
    if finding.fix_command:
        blocks.append(fenced(finding.fix_command, "sh"))
    if finding.evidence:
        rows = ((_cell(e.path), _cell(e.seen), _cell(e.expected)) for e in finding.evidence)
        blocks.append(table(("fact", "seen", "expected"), rows))
    return [block for block in blocks if block]


def _remarks(finding: Finding) -> Iterable[tuple[str, str]]:
    yield "where", prose(place(finding))
    if finding.role is Role.CONSEQUENCE:
        yield "follows from", prose(finding.caused_by or "another fault")
    if finding.role is Role.NOISE:
        yield "harmless", "it needs no action"
    yield "why", prose(finding.why)
    yield "fix", prose(finding.fix)


def _cell(text: str) -> str:
    # A pipe ends a cell even inside a code span.
    return code(text).replace("|", "\\|")


def _differences(report: Report) -> list[str]:
    if not report.compared_with:
        return []
    lines = [f"- {prose(difference_text(difference))} ({code(difference.place)})" for difference in report.differences]
    return [prose(heading_of_differences(report)), *(["\n".join(lines)] if lines else [])]


def _failures(report: Report) -> list[str]:
    lines = [f"- {prose(crash.code)} crashed: {prose(crash.error)}" for crash in report.crashed]
    lines += [f"- could not {prose(failure)}" for failure in report.failures]
    return ["### ddpdoctor itself failed", "\n".join(lines)] if lines else []
