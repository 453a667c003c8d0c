"""Whether an input shows a job at all: something of a rank, a launcher, a scheduler or a library, progress, or times."""

from __future__ import annotations

import functools
from dataclasses import replace

from ddpdoctor.facts.log import InputKind, Log, LogLine, Who
from ddpdoctor.late_pattern import pattern
from ddpdoctor.logs.line_meaning import is_work_of_job, reports_failure

__all__ = ["NOT_JUDGED", "is_of_job", "reason_against", "settled"]

NOT_JUDGED: dict[InputKind, str] = {
    InputKind.NVIDIA_SMI: "output of nvidia-smi without a value that can be judged",
    InputKind.IBSTAT: "output of ibstat without a port",
    InputKind.DCGMI: "output of dcgmi without a result",
    InputKind.LSPCI: "output of lspci without a value that can be judged",
    InputKind.NCCL_TESTS: "output of nccl-tests without a result",
    InputKind.TOOL: "output of a tool without a value that can be judged",
    InputKind.SCRIPT: "a Python script; `ddpdoctor lint` examines it",
    InputKind.SHELL: "a shell script; `ddpdoctor lint` examines it",
    InputKind.NOTEBOOK: "a notebook; `ddpdoctor lint` examines it",
    InputKind.MANIFEST: "a YAML file; `ddpdoctor lint` examines it",
    InputKind.JSON: "JSON of an unknown schema",
    InputKind.IMAGE: "an image",
    InputKind.ARCHIVE: "an archive; unpack it",
    InputKind.CHECKPOINT: "a model checkpoint",
    InputKind.BINARY: "not text, and no other format that triage reads",
    InputKind.EMPTY: "empty",
    InputKind.SPECIAL: "not a regular file",
}
"""Kinds of inputs that show nothing of a job by themselves, and what to say of them."""
_TOOLS = (
    InputKind.NVIDIA_SMI,
    InputKind.IBSTAT,
    InputKind.DCGMI,
    InputKind.LSPCI,
    InputKind.NCCL_TESTS,
    InputKind.TOOL,
)
_MAY_BE_TEXT = (*_TOOLS, InputKind.MANIFEST, InputKind.JSON)
_NO_JOB = "no line of a job in it"

_VALUE = pattern(
    r"\s*<[\w.]+>[^<]*</[\w.]+>\s*$|\s*\|.*\|\s*$|\s*[A-Z][\w .()/-]{2,45} : "
    r"|(?:Unable to determine the device handle|Failed to initialize NVML|NVIDIA-SMI has failed|No devices were found)"
)
_WORDS = pattern(
    r"torch[/.]|\bNCCL (?:INFO|WARN|version)|\bsrun: |slurmstepd|\[c10d\]|ProcessGroup|\bwandb: |\bdeepspeed\b|\bmpirun\b"
    r"|(?:^|[\s\[(|-])(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL)(?:[\s\])|:-]|$)|\bUserWarning\b|\bcuda:\d|\b[Rr]ank:? ?\d"
    r"|\b(?:GLOBAL_RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR)=|\b(?:Killed|Terminated|Aborted|core dumped)\b"
)


def settled(log: Log) -> Log:
    """The log in which a source that begins like something else, but shows a job as well, is text: scripts call tools first."""
    of_job = _of_job(log)
    is_text = [of_job.is_text(i, each.kind) for i, each in enumerate(log.sources)]
    if not any(is_text):
        return log
    sources = (replace(s, kind=InputKind.TEXT) if now else s for s, now in zip(log.sources, is_text, strict=True))
    return replace(log, sources=tuple(sources))


def is_of_job(log: Log, source: int) -> bool:
    """Whether a source shows something of a job, or of the machine that it ran on."""
    return reason_against(log, source) is None


def reason_against(log: Log, source: int) -> str | None:
    """Why a source shows nothing of any job; None if it does."""
    kind = log.sources[source].kind
    if kind in NOT_JUDGED:
        return log.sources[source].problem or NOT_JUDGED[kind]
    of_job = _of_job(log)
    if kind is not InputKind.TEXT or source in of_job.matched or source in of_job.speaking:
        return None
    return log.sources[source].problem or _NO_JOB


class _OfJob:
    """The sources in which something matters, those with lines as jobs print them, and those that end with such a line."""

    def __init__(self, log: Log) -> None:
        self.matched = {each.source for each in (*log.spoken, *log.unfinished)}
        self.matched |= {xid.source for xid in log.xids if xid.source is not None}
        self.told = {each.source for each in log.spoken if not _is_of_tool(each)}
        self.told |= {each.source for each in log.unfinished}
        self.speaking = {line.source for line in (*log.heads, *log.tails) if _is_of_job(line)}
        self.working = {line.source for line in log.tails if line.time is not None or is_work_of_job(line.text)}
        self.launched = {each.source for each in log.marks}
        self.matched |= self.launched
        self.launched |= {each.source for each in log.tracebacks} | {each.source for each in log.exits}

    def is_text(self, source: int, kind: InputKind) -> bool:
        """Whether a source that begins like something else is the log of a job."""
        if kind is InputKind.KERNEL:
            return source in self.launched
        if kind in _TOOLS:
            # nccl-tests lists ranks and steps, as a job does.
            works = source in self.working and kind is not InputKind.NCCL_TESTS
            return source in self.told or source in self.launched or works
        return kind in _MAY_BE_TEXT and source in self.matched


def _is_of_tool(line: object) -> bool:
    """Whether a line of interest is a row of a table, an element, or a value with its label, as nvidia-smi prints them."""
    return isinstance(line, LogLine) and _VALUE.match(line.text) is not None


@functools.lru_cache(4)
def _of_job(log: Log) -> _OfJob:
    return _OfJob(log)


def _is_of_job(line: LogLine) -> bool:
    """Whether a line has a prefix of a rank or a time, or reads like one of a job."""
    if line.time is not None or line.who != Who() or reports_failure(line):
        return True
    return is_work_of_job(line.text) or _WORDS.search(line.text) is not None
