"""Whether a log shows that its job ended well or still works, and if not, what it shows instead.

Only a process whose good end is in the log, or whose training steps continue until the end of a log that is not cut, is known to
be well. Everything else is open: a log that stops after a warning, while the ranks join, or in the middle of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from ddpdoctor.facts.log import InputKind, JobOutcome, Log, LogLine, Who
from ddpdoctor.late_pattern import pattern
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import EXCERPT_LINES, GOOD_END_LINES, QUOTED_LINES
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_meaning import gives_up, is_omission, is_progress, is_work_of_job, reports_failure

__all__ = ["OpenEnd", "open_end"]


class OpenEnd(str, Enum):
    """What a log shows instead of the end of its job."""

    FAILURE = "failure"
    """A process failed."""
    TROUBLE = "trouble"
    """Somebody describes a problem; the message itself is not in the text."""
    JOINING = "joining"
    """The ranks join the process group, or NCCL connects them."""
    WARNING = "warning"
    """The last line is a warning."""
    CUT = "cut"
    """The last line is incomplete."""
    STOPS = "stops"
    """It stops after something else."""


_OF_PROCESSES = (InputKind.TEXT, InputKind.ERROR_FILE)
_GOOD_END = pattern(
    r'"run_stop"[^\n]{0,160}"status": "success"|"key": "status", "value": "success"|ENDING TIMING RUN|^(?:\d+: )?RESULT,'
    r"|\btrain_runtime\b|\btrain_samples_per_second\b|\btrain_loss +=|^\*{3,} (?:train|eval) metrics \*{3,}"
    r"|\b(?:training|job|run|fine-?tuning|evaluation|experiment|task|all (?:tests|epochs|workers|ranks|processes))\b[^\n]{0,30}"
    r" (?:has |have |is |are |was )?(?:already |successfully )?(?:complete[d]?|finished|succeeded|done)\b(?! with)"
    r"|\b(?:finished|completed|exited|terminated|succeeded|stopped) (?:successfully|normally|cleanly)\b"
    r"|\b(?:finished|completed|exited|ended|done) with (?:(?:exit )?(?:code|status)|rc|return ?code)?[ =:]{0,2}0\b"
    r"|\b[Ss]uccessfully (?:finished|completed|trained|saved)\b"
    r"|\b(?:ret_code|EXIT_CODE|[Ee]xit[ _][Cc]ode|[Rr]eturn ?[Cc]ode|exit status)[=:]? ?0\b"
    r"|\bState(?:=|: )COMPLETED\b|\bjob state (?:\w+ -> )?SUCCEEDED\b|\bStatus: +Succeeded\b|\bJob '[^']{1,200}' succeeded\b"
    r"|\b(?:model|weights|checkpoint|adapter)s? (?:is |was |has been |have been )?saved (?:to|in|at|successfully)\b"
    r"|watchdog thread terminated normally"
    r"|^(?:\[[^\]]{1,40}\] ?)?(?:All done|Done|DONE|Finished|Training done|Training complete)[.!]{0,3}$"
    r"|\b\d{1,9} passed(?:, \d{1,9} \w{1,20}){0,8} in [\d.]{1,12} ?s|\bBenchmark (?:finished|complete)",
    re.IGNORECASE,
)
"""What jobs, launchers and schedulers print when all went well, among the last lines."""
_SAYS_STUCK = pattern(
    r"\b(?:stuck|hang(?:s|ing)?|hung|freez(?:es?|ing)|frozen|stall(?:s|ed)|deadlock\w*|crash(?:es|ed)?|nothing happens"
    r"|never (?:starts|returns|ends|finishes)|does(?:n't| not) (?:work|start|respond)|not working|no response)\b|卡住|卡死",
    re.IGNORECASE,
)
"""How people write of a job that is stuck or ends: no job prints this of itself."""
_HEDGED = pattern(
    r"\b(?:can|could|may|might|would|potentially)\b[^\n]{0,30}\b(?:cause|lead|result|be|become|hang)\b", re.IGNORECASE
)
"""What libraries say of what might happen."""
_IS_STUCK = pattern(r"\b(?:stuck|hangs|hung|freezes|frozen|nothing happens)\b|卡住|卡死", re.IGNORECASE)
"""The same where somebody added it to a line of the job."""
_SAYS_PROBLEM = pattern(
    r"\b(?:fail(?:s|ed|ing)?|failure|errors?|exceptions?|bug|problem|issue|broken|killed|dies|died|segfaults?|OOM|out of memory"
    r"|time[sd]? ?out|can(?:'t|not)|unable to)\b|报错|失败|崩溃|错误",
    re.IGNORECASE,
)
_IS_MEASURE = pattern(
    r"\b(?:error|errors|failed|failures?)\b[\"']?[ =:]{1,3}\d|\b(?:0|no) (?:error|fail)", re.IGNORECASE
)
"""A metric or a counter that has such a name."""
_OF_PROGRAM = pattern(
    r"^\W{0,3}(?:INFO|DEBUG|WARN(?:ING)?|NOTICE|ERROR|CRITICAL|[IWEF]\d{4})\b|^\[[^\]\n]{1,80}\] ?\S|\S:\d+[:\])]"
    r"|^\s*\S+[:=]\s|^\d{4}-\d\d|^[:>+$#{]"
)
"""How lines of programs begin, not sentences: a level, a module, a place, a name with its value, a prompt."""
_BAR = pattern(r"(?<!\d)\d{1,18}/\d{1,18} \[")
"""A progress bar shows the steps before it as well."""
_PROSE_WORDS = 3
"""A sentence or a title has at least so many words."""
_ERROR_LEVEL = pattern(r"\[E\d{3,4} [\d:.]{5,}|^E\d{4} [\d:.]{5,}")
"""How torch and glog begin a line of the level ERROR."""
_WARNS = pattern(r"warn(?:ing)?s?\b|^\[?W\d{3,4} |\bNCCL WARN\b|\bDeprecat", re.IGNORECASE)
_JOINS = pattern(
    r"\bNCCL INFO\b|\bMEMBER: \d+/\d+|\bRendezvous|\brendezvous|init_process_group"
    r"|initializ\w{1,8} (?:ddp|distributed|process group)|\bclients joined\b"
    r"|distributed_backend|\bStarting (?:elastic_operator|worker group)",
)
_UNFINISHED = pattern(r"(?:\.{3}|…)\s*$|^[^\"\n]*\"[^\"\n]*$|\([^()\n]*$|\[[^\[\]\n]*$|[,(\[{=\\]\s*$")
"""The end of a line that was cut: marks of omission, or a quote or bracket that is still open."""
_NCCL_INFO = "NCCL INFO"
_AT_EXIT_BARRIER = "waiting on exit barrier"


def open_end(log: Log) -> tuple[OpenEnd, LogLine | None] | None:
    """What the log shows instead of a good end, with the line that decides; None where the job is known to be well.

    None as well where somebody interrupted the job, and where nothing in the log is the output of a process.
    """
    history = history_of(log)
    ends = [_source_end(log, source) for source, each in enumerate(log.sources) if each.kind in _OF_PROCESSES]
    if history.outcome is JobOutcome.INTERRUPTED or not ends:
        return None
    if history.outcome is JobOutcome.FAILED:
        return OpenEnd.FAILURE, history.last_failure
    if any(end is None for end in ends):
        return None
    return next(end for end in ends if end is not None)


def _source_end(log: Log, source: int) -> tuple[OpenEnd, LogLine | None] | None:
    """The same of one source; None where it shows a good end or work that continues."""
    if any(line.source == source for line in _launcher_done(log)):
        return None
    lines = [line for line in log.tails if line.source == source and line.text.strip()]
    is_short = log.sources[source].lines <= EXCERPT_LINES
    told = _told(log, source, lines) if log.sources[source].lines <= QUOTED_LINES else None
    if told is not None and _SAYS_STUCK.search(told.text):
        return OpenEnd.TROUBLE, told
    end = lines[-GOOD_END_LINES:]
    if _ends_well(log, source, end):
        return None
    if told is not None:
        return OpenEnd.TROUBLE, told
    if _works(end, is_short=is_short) and not _is_cut(end):
        return None
    return _instead(end), lines[-1] if lines else None


def _told(log: Log, source: int, lines: Sequence[LogLine]) -> LogLine | None:
    """The sentence in which somebody describes a problem, one about a stuck job first; None without one."""
    prose = [line for line in dict.fromkeys((*log.heads, *lines)) if line.source == source and _is_prose(line)]
    stuck = [line for line in prose if _SAYS_STUCK.search(line.text)]
    stuck += [line for line in lines if _IS_STUCK.search(line.text) and _WARNS.search(line.text) is None]
    problems = (line for line in prose if _tells_of_problem(line.text))
    return next(iter((*stuck, *problems)), None)


def _is_prose(line: LogLine) -> bool:
    """Whether a line is a sentence or a title that a person wrote, not one that a program printed."""
    is_long = len(line.text.split()) >= _PROSE_WORDS or not line.text.isascii()
    if line.time is not None or line.who != Who() or not is_long:
        return False
    return not any(each.search(line.text) for each in (_OF_PROGRAM, _WARNS, _HEDGED))


def _tells_of_problem(text: str) -> bool:
    return not (_SAYS_PROBLEM.search(text) is None or _IS_MEASURE.search(text) or _GOOD_END.search(text))


def _launcher_done(log: Log) -> Iterator[LogLine]:
    """The lines in which a launcher says that its workers are done: torchrun waits at its exit barrier for nothing else."""
    yield from (line for line, _ in context_lines(log, "group_finished"))
    yield from (line for line in log.lines if _AT_EXIT_BARRIER in line.text)


def _ends_well(log: Log, source: int, end: Sequence[LogLine]) -> bool:
    """Whether the job, its launcher or its scheduler says that all went well, and no failure follows."""
    marks = [line.number for line, _ in context_lines(log, "finished") if line.source == source]
    marks += [line.number for line in end if _GOOD_END.search(line.text)]
    return bool(marks) and not any(line.number > max(marks) and _says_failure(line) for line in end)


def _works(end: Sequence[LogLine], *, is_short: bool) -> bool:
    """Whether the last lines are training steps without a failure after them; lines of NCCL do not count."""
    steps = [line for line in end if _is_step(line, is_short=is_short)]
    is_enough = len(steps) > 1 or any(line.count > 1 or _BAR.search(line.text) for line in steps)
    return is_enough and not any(line.number > steps[0].number and _says_failure(line) for line in end)


def _is_step(line: LogLine, *, is_short: bool) -> bool:
    if (
        _says_failure(line)
        or _NCCL_INFO in line.text
        or _JOINS.search(line.text)
        or _WARNS.search(line.text)
        or not is_progress(line)
    ):
        return False
    return is_work_of_job(line.text) or not is_short


def _says_failure(line: LogLine) -> bool:
    return reports_failure(line) or gives_up(line) or _ERROR_LEVEL.search(line.text) is not None


def _is_cut(end: Sequence[LogLine]) -> bool:
    """Whether the last line is incomplete, or says that something was left out."""
    return bool(end) and (
        is_omission(end[-1]) or (not is_work_of_job(end[-1].text) and _UNFINISHED.search(end[-1].text) is not None)
    )


def _instead(end: Sequence[LogLine]) -> OpenEnd:
    if not end:
        return OpenEnd.STOPS
    if _is_cut(end):
        return OpenEnd.CUT
    if _JOINS.search(end[-1].text):
        return OpenEnd.JOINING
    return OpenEnd.WARNING if _WARNS.search(end[-1].text) else OpenEnd.STOPS
