"""What a single line says of the process that printed it: progress, a failure, a text that the job only quotes."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import LogLine
from ddpdoctor.late_pattern import pattern

__all__ = [
    "NCCL_READY",
    "NCCL_RETURNED",
    "gives_up",
    "is_of_whole_job",
    "is_omission",
    "is_progress",
    "is_quoted",
    "is_work_of_job",
    "reports_failure",
    "says_end",
]

NCCL_RETURNED = pattern(r"\bINFO (?P<file>\S+\.(?:c[cu]|h)):\d+ (?:\([\w:~<>]{1,100}\) )?-> ?(?P<code>[1-7])\b")
"""How NCCL passes an error on."""
NCCL_READY = pattern(r"Init COMPLETE|Connected all (?:rings|trees)")
"""What NCCL prints when a communicator is ready."""

_FAILED = pattern(
    r"\b(ABORTED|FAILED|Aborted|Killed|(?<!\d )Terminated|Terminated +\S*(?:python|run|launch|deepspeed))\b|core dumped"
    r"|srun: error|exit(ed with)?( exit)? code:? (?:-?[1-9]|0x[cC]0000\d)|[Kk]ernel appears to have died"
    r"|non-zero (exit )?status|terminate called|taking the entire process down|Segmentation fault|Bus error"
    r"|died with <Signals|CANCELLED AT|RendezvousTimeoutError|OOMKilled|CrashLoopBackOff|There are not enough slots available"
    r"|\b(?:INFO|WARN) \S+\.(?:c[cu]|h):\d+ (?:\([\w:~<>]{1,100}\) )?-> ?[1-7]\b|NCCL WARN (?:Net : )?Call to [a-z]+ failed : "
    r"|Could not load library libcudnn|error while loading shared libraries: "
    r"|returned [\w() ]{1,80}, retrying \((?P<most>\d+)/(?P=most)\)|Test NCCL failure|MPI_ERRORS_ARE_FATAL"
    r"|Received sigquit from a child process|Encountered a bad command exit code"
    r"|Killing subprocess \d|closing signal SIG[TH]"
    r"|remote process exited or there was a network error"
    r"|DistBackendError|ncclRemoteError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError",
)
_GIVES_UP = pattern(
    r"^SystemExit: (?!0$|None$)|\b[Aa]borting(?:\.|!|$)|\b(?:Aborting|Exiting|Quitting|Giving up)\b[^\n]{0,40}[.!]?$"
    r"|^(?:\S{1,80}: )?(?:fatal|FATAL|Fatal|panic|PANIC|CRITICAL)(?: error)?: |^(?:\[?(?:FATAL|CRITICAL)\]?)\b"
    r"|^\S{1,200}: (?:error|Error|ERROR): |^(?:\[?(?:ERROR|Error|error)\]?|E\d{4} [\d:.]{8,20}[^\]]{0,80}\])[: ]{1,3}[^\s\d.:-]"
    r"|(?:[Jj]ob|[Tt]raining|[Rr]un|[Pp]rocess|[Ww]orker|[Cc]ommand|[Tt]ask|[Rr]ank \d+) (?:has )?"
    r"(?:failed|crashed|aborted|died)\b"
    r"|\b(?:exit code|status|return code|returncode)[ =:]{1,3}[1-9]\d{0,2}\b"
)
"""Words with which an output ends that did not end well, though no rule knows them."""
_ENDS = pattern(
    r"SystemExit|\b[Aa]bort|\b(?:[Ee]xit|[Qq]uit|[Gg]iving up|fatal|panic|critical|fail|crash|died|[Rr]eturn ?code|status)",
    re.I,
)
"""Words that say that a process ends."""
_GOES_WELL = pattern(
    r"\b(?:0|no) (?:error|failure|failed)|\btook [\d.]{1,12} ?s"
    r"|\b(?:retry|skipp|ignor|fall(?:ing)? back|recover|success|passed\b)",
    re.IGNORECASE,
)
_TROUBLE = pattern(
    r"error|exception|traceback|warn|fail|abort|terminat|kill(?:ed|ing)|signal|exit|closing|closed|timed? ?out|frame #"
    r"|core dumped|cancelled|shut(?:ting)? ?down|[Ff]inished server process"
    r"|\b(?:INFO|WARN) \S+:\d+ -> ?\d|^\s|^wandb:|^=+$|^-+$|^\W*$|^\[0x[0-9A-Fa-f]+\]|resource_tracker|semaphore"
    r"|slurm|srun:|missing ranks:|^\[[^\]]*(?:allreduce|broadcast|allgather|alltoall)"
    r"|\+0x[0-9a-f]+\)|\[0x[0-9a-f]+\]$|did not receive grad|\bforward function\b|\bloss function\b",
    re.IGNORECASE,
)
"""Lines that processes print on their way out: they do not show that the job continues."""
_AT_WORK = pattern(r"\d|\b(?:INFO|DEBUG|NOTICE)\b|%\|")
"""What a job that runs prints has numbers, times or levels; a usage, a help text and somebody's remark do not."""
_QUOTED = pattern(
    r"\b(?:samples?|prompts?|questions?|texts?|generated|completions?|predictions?|instructions?|answers?)\b"
    r"[^\"'“:=]{0,20}[:=] ?[\"'“]",
    re.IGNORECASE,
)
"""What a job prints of its data, before the quote."""
_OF_JOB = pattern(r"slurmstepd(?:-\S+)?: error: \*\*\* (?:JOB|STEP) ")
_OMITTED = pattern(
    r"[\W_]{0,10}(?:\.{3,}|…|snip(?:ped)?|omit(?:ted)?|truncated|trimmed)[\W_]{0,10}$|[-#<\[(]{1,10} ?omit[^\n]{0,60}$",
    re.IGNORECASE,
)
_STEP = pattern(
    r"(?i)\b(?:step[_ ]time|loss|accuracy|throughput|lr|tok(?:en)?s?/s|samples/s)\b[^\n]{0,20}?\d"
    r"|\d ?(?:it/s|s/it)\b|\d%\||\b\d+/\d+ \["
    r"|\b(?:epochs?|steps?|iter(?:ation)?s?|batch|rank)\b[ =:/#\[(]{0,3}\d+[^\n]{0,80}?\d"
)
_READ_CHARS = 300
"""A line shows within so many characters whether it is of a job that works."""
_QUOTE_CHARS = 200


def is_work_of_job(text: str) -> bool:
    """Whether a text has the numbers of a training step: a loss, a rate, a step with its count."""
    return _STEP.search(text) is not None


def is_omission(line: LogLine) -> bool:
    """Whether whoever pasted the log says in this line that some of it was left out."""
    return _OMITTED.match(line.text[:_QUOTE_CHARS]) is not None


def is_progress(line: LogLine) -> bool:
    """Whether the line looks like one of a job that works."""
    text = line.text[:_READ_CHARS]
    return not _TROUBLE.search(text) and (line.time is not None or _AT_WORK.search(text) is not None)


def is_quoted(line: LogLine) -> bool:
    """Whether the line only shows a text that the job works on, as a language model's sample."""
    return _QUOTED.search(line.text[:_QUOTE_CHARS]) is not None


def reports_failure(line: LogLine) -> bool:
    """Whether the line says that a process or the job failed."""
    return _FAILED.search(line.text) is not None


def gives_up(line: LogLine) -> bool:
    """Whether the line, where it is among the last ones of an output, says that the process ended with a failure."""
    text = line.text[:_READ_CHARS]
    return _GIVES_UP.search(text) is not None and _GOES_WELL.search(text) is None and not is_quoted(line)


def says_end(line: LogLine) -> bool:
    """Whether the line says that its process ends, and not only that something went wrong."""
    return _ENDS.search(line.text[:_READ_CHARS]) is not None


def is_of_whole_job(line: LogLine) -> bool:
    """Whether a scheduler says it of all of the job's processes."""
    return _OF_JOB.match(line.text) is not None
