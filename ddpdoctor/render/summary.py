"""The last lines of a screen: the verdict, what was examined, and what to type for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpdoctor.findings import Finding, Report, Verdict
from ddpdoctor.render.blocks import is_harmless
from ddpdoctor.render.plain import printable
from ddpdoctor.render.words import joined, listed, seconds_text
from ddpdoctor.wording import counted

__all__ = ["summary"]

COLOURS = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.INCOMPLETE: "magenta"}
MOST_REASONS = 3
MOST_OPEN_ENDS = 4
"""Most jobs of which a screen says that their end is unknown."""

NOUNS = {"shell": "shell file", "stacks": "stack dump", "facts": "facts file", "unknown": "other file"}
"""The nouns for counting kinds of input, if they differ from the kind's name."""
TOOLS = (
    "nvidia-",
    "dcgmi",
    "ib",
    "lspci",
    "nccl-tests",
    "NCCL ",
    "collect_env",
    "ip ",
    "ulimit",
    "env",
    "scontrol",
    "kubectl",
)
"""The beginnings of kinds that are names of tools."""


def summary(report: Report, *, is_verbose: bool) -> Iterator[Text]:
    """What did not answer, what was skipped, the counts of rules for a verbose screen, and the verdict."""
    unanswered: dict[str, list[str]] = {}
    for skip in report.skipped:
        if skip.unanswered:
            unanswered.setdefault(skip.reason, []).append(skip.code)
    for reason, codes in unanswered.items():
        yield Text.assemble(("unknown: ", "magenta"), f"{printable(reason)} ({listed(codes)})")
    for text in report.open_ends[:MOST_OPEN_ENDS]:
        yield Text.assemble(("unknown: ", "magenta"), printable(text))
    if len(report.open_ends) > MOST_OPEN_ENDS:
        yield Text(
            f"unknown: how {len(report.open_ends) - MOST_OPEN_ENDS} more jobs ended (--format json lists them)", "dim"
        )
    if skipped := _skipped_inputs(report):
        yield Text(printable(skipped), style="dim")
    if is_verbose:
        yield Text(_rules(report), style="dim")
        for note in report.notes:
            yield Text(printable(note), style="dim")
    shown = [finding for finding in report.findings if not is_harmless(finding)]
    code = next((finding.code for finding in shown), "")
    words = [_counts(shown), _checked(report), seconds_text(report.seconds)]
    more = f"ddpdoctor explain {printable(code)}" if code else ""
    line = Text(_verdict(report), style=f"bold {COLOURS[report.verdict]}")
    line.append(f" · {joined(words)}" if _verdict(report) else joined(words), style="not bold default")
    yield line.append(f" · {more}" if more else "", style="not bold default dim")


def _verdict(report: Report) -> str:
    """`pass` or `incomplete`; a report with findings says how many there are instead."""
    return report.verdict.value if report.verdict in (Verdict.PASS, Verdict.INCOMPLETE) else ""


def _counts(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.worst.value for finding in findings)
    return ", ".join(counted(counts[word], word) for word in ("error", "warning", "note") if counts[word])


def _checked(report: Report) -> str:
    """`checked 2 scripts, 1 manifest`; empty where the report names no inputs."""
    counts = Counter(source.kind for source in report.inputs if source.is_understood)
    return f"checked {', '.join(counted(n, _noun(kind)) for kind, n in counts.items())}" if counts else ""


def _noun(kind: str) -> str:
    """The noun for counting: `nvidia-smi file` for the output of a tool."""
    return NOUNS.get(kind) or (f"{kind} file" if kind.startswith(TOOLS) else kind)


def _skipped_inputs(report: Report) -> str:
    """`skipped 3 files (not a text: 2, empty: 1)`: files in folders that are not of a known kind."""
    reasons = Counter(
        source.reason or "not understood"
        for source in report.inputs
        if not source.is_understood and not source.is_named
    )
    shown = [f"{reason}: {count}" for reason, count in reasons.most_common(MOST_REASONS)]
    more = len(reasons) - len(shown)
    total = sum(reasons.values())
    return f"skipped {counted(total, 'file')} ({', '.join(shown)}{', …' if more > 0 else ''})" if total else ""


def _rules(report: Report) -> str:
    """`233 rules passed, 119 checks skipped (no NVIDIA GPU: 83, other: 36)`."""
    line = f"{counted(len(report.passed), 'rule')} passed"
    if not report.skipped:
        return line
    reasons = Counter(" ".join(skip.reason.split()) for skip in report.skipped).most_common(MOST_REASONS)
    rest = len(report.skipped) - sum(count for _, count in reasons)
    shown = [f"{printable(reason)}: {count}" for reason, count in reasons] + ([f"other: {rest}"] if rest else [])
    return f"{line}, {counted(len(report.skipped), 'check')} skipped ({', '.join(shown)})"
