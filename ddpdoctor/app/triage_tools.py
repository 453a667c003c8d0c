"""Files of other tools among the inputs of triage: nvidia-smi, ibstat, dcgmi and others, beside logs and dumps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.request import Request
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.collectors.tool_files import MOST_BYTES, tool_text
from ddpdoctor.engine import retold
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.log import InputKind, Log
from ddpdoctor.findings import Report
from ddpdoctor.rules import AREAS
from ddpdoctor.wording import counted

if TYPE_CHECKING:
    from ddpdoctor.app.tool_files import ToolReport

__all__ = ["examined_tools", "with_tools"]

TOOL_KINDS = (
    InputKind.NVIDIA_SMI,
    InputKind.IBSTAT,
    InputKind.DCGMI,
    InputKind.LSPCI,
    InputKind.NCCL_TESTS,
    InputKind.TOOL,
    InputKind.JSON,
    InputKind.MANIFEST,
)
LOG_BYTES = 4 << 20
"""How much of a log, or of JSON or YAML, is searched for the output of tools: jobs call nvidia-smi first."""

ALL_LOGS_BYTES = 256 << 20
"""How much of all logs together is searched: ranks of one job call the same tools."""


def examined_tools(log: Log, request: Request, named: Iterable[str], deadline: float) -> ToolReport | None:
    """What the files of tools among the sources of a log show; None if no source can be one (the readers of
    tools and the rules of machines are then not imported: that takes longer than judging a short log).
    """
    texts = []
    left = ALL_LOGS_BYTES
    for source in log.sources:
        if source.kind in TOOL_KINDS or source.kind is InputKind.TEXT:
            is_other = source.kind in (InputKind.TEXT, InputKind.JSON, InputKind.MANIFEST)
            is_log = source.kind is InputKind.TEXT
            if is_log and left <= 0:
                continue
            left -= min(source.size_bytes, LOG_BYTES) if is_log else 0
            text, _ = tool_text(source.name, LOG_BYTES if is_other else MOST_BYTES, deadline, in_log=is_log)
            if text is not None:
                texts.append((source.name, text))
    if not texts:
        return None
    from ddpdoctor.app.tool_files import examine_tool_files  # see above

    return examine_tool_files(texts, rules_for(request, tuple(AREAS.values())), named)


def with_tools(report: Report, tools: ToolReport) -> Report:
    """The report with what the files of tools show. Of one cause, what a job's log says counts; in other files, what the rules
    that judge machines find.
    """
    if not tools.inputs:
        return report
    logs = {source.path for source in report.inputs if source.job is not None}
    told = {(finding.code, finding.where.file) for finding in report.findings if finding.where.file in logs}
    kept = [f for f in tools.findings if (f.code, f.where.file) not in told]
    better = {(finding.code, finding.where.file) for finding in kept}
    own = tuple(f for f in report.findings if (f.code, f.where.file) not in better)
    joined = retold(replace(report, findings=own), kept)
    found = {finding.code for finding in joined.findings}
    passed = tuple(dict.fromkeys((*joined.passed, *(code for code in tools.passed if code not in found))))
    settled = found.union(passed)
    skipped = {skip.code: skip for skip in (*joined.skipped, *tools.skipped) if skip.code not in settled}
    inputs = tuple(_merged(source, tools) for source in joined.inputs)
    return replace(
        joined,
        passed=passed,
        skipped=tuple(skipped.values()),
        crashed=(*joined.crashed, *tools.outcome.crashed),
        inputs=inputs,
        subject=_subject(report, tools, inputs),
    )


def _merged(examined: ExaminedInput, tools: ToolReport) -> ExaminedInput:
    """What an input is: the log of a job stays one, whatever tools it called."""
    own = tools.inputs.get(examined.path)
    is_log = examined.is_understood or examined.kind in ("report", "facts")
    return examined if own is None or is_log else replace(own, is_named=examined.is_named)


def _subject(report: Report, tools: ToolReport, inputs: Sequence[ExaminedInput]) -> str:
    """What was examined: the tools' files alone, or in addition to the jobs."""
    if not report.jobs and len(inputs) == len(tools.inputs):
        return tools.subject
    return f"{report.subject}; {counted(len(tools.inputs), 'file')} with the output of tools"
