"""What shows that a job got over an error: lines of one that runs, words of who caught it, a plain word that it ended well."""

from __future__ import annotations

import functools
import re

from ddpdoctor.facts.log import Exit, Line, Log, Traceback, Who
from ddpdoctor.logs.context_patterns import marked

__all__ = ["ended_well", "is_overcome", "is_quoted", "last_words"]

_TROUBLE = re.compile(
    r"error|exception|traceback|warn|fail|abort|terminat|kill(?:ed|ing)|signal|exit|closing|closed|timed? ?out|frame #"
    r"|core dumped|cancelled|shut(?:ting)? ?down|[Ff]inished server process"
    r"|\b(?:INFO|WARN) \S+:\d+ -> ?\d|^\s|^wandb:|^=+$|^-+$|^\W*$|^\[0x[0-9A-Fa-f]+\]|resource_tracker|semaphore"
    r"|slurm|srun:|missing ranks:|^\[[^\]]*(?:allreduce|broadcast|allgather|alltoall)"
    r"|\+0x[0-9a-f]+\)|\[0x[0-9a-f]+\]$|did not receive grad|\bforward function\b|\bloss function\b",
    re.IGNORECASE,
)
"""Lines that processes print on their way out: they do not show that the job went on."""

_AT_WORK = re.compile(r"\d|\b(?:INFO|DEBUG|NOTICE)\b|%\|")
"""What a job that runs prints has numbers, times or levels; a usage, a help text and somebody's remark have not."""
_QUOTED = re.compile(
    r"\b(?:samples?|prompts?|questions?|texts?|generated|completions?|predictions?|instructions?|answers?)\b"
    r"[^\"'“:=]{0,20}[:=] ?[\"'“]",
    re.IGNORECASE,
)
"""What a job prints of its data, before the quote."""
_OF_JOB = re.compile(r"slurmstepd(?:-\S+)?: error: \*\*\* (?:JOB|STEP) ")
NEAR = 4
"""So many lines behind an error stands what the one says who caught it."""
SUMMARY = 40
"""So many lines has torchrun's summary of a job that failed."""


def last_words(log: Log, source: int, after: int) -> list[Line]:
    """The last lines of a source behind line `after` that look like a job that runs."""
    return [line for line in _calm_tails(log).get(source, ()) if line.number > after]


@functools.lru_cache(4)
def _calm_tails(log: Log) -> dict[int, list[Line]]:
    """By source, the last lines that look like a job that runs."""
    found: dict[int, list[Line]] = {}
    for line in log.tails:
        if not _TROUBLE.search(line.text[:300]) and (line.time is not None or _AT_WORK.search(line.text[:300])):
            found.setdefault(line.source, []).append(line)
    return found


def is_quoted(line: Line) -> bool:
    """Whether the line only shows a text that the job works on, as a language model's sample."""
    return _QUOTED.search(line.text[:200]) is not None


def is_overcome(log: Log, spoken: Line | Traceback) -> bool:
    """Whether the log itself says that this error did no harm: somebody caught it, or the job ended well behind it."""
    return ended_well(log, spoken) or _is_caught(log, spoken) or _has_finished(log, spoken)


@functools.lru_cache(4)
def _said(log: Log, name: str) -> tuple[Line, ...]:
    return tuple(line for line, _ in marked(log, name))


def ended_well(log: Log, each: Line | Traceback | Exit) -> bool:
    """Whether torchrun or DeepSpeed says further down in the same source that its workers finished, and had not given up."""
    if any(e.source == each.source and e.by == "DeepSpeed" for e in log.exits):
        return False
    given_up = [
        t.number for t in log.tracebacks if t.source == each.source and t.exception.endswith("ChildFailedError")
    ]
    return any(
        line.source == each.source
        and _last_of(line) > _last_of(each)
        and _may_share_a_node(line.who, each.who)
        and not any(each.number - SUMMARY < number < _last_of(line) for number in given_up)
        for line in _said(log, "group_finished")
    )


def _may_share_a_node(one: Who, other: Who) -> bool:
    pairs = ((one.host, other.host), (one.task, other.task), (one.node_rank, other.node_rank))
    return all(a is None or b is None or a == b for a, b in pairs)


def _is_caught(log: Log, spoken: Line | Traceback) -> bool:
    """Whether the line, or one right behind it by the same process, says how it goes on, and it did."""
    handled = [line for line in _said(log, "handled") if _is_by_the_same(line, spoken)]
    near = [line for line in handled if 0 <= line.number - spoken.number <= NEAR and _last_of(line) >= _last_of(spoken)]
    if not near and not any(_is_repeated(log, line, spoken) for line in handled):
        return False
    behind = last_words(log, spoken.source, _last_of(near[-1] if near else spoken))
    ranks = {word.who.rank for word in behind}
    return spoken.who.rank in ranks or (ranks == {None} and not _is_over_for(log, spoken))


def _is_repeated(log: Log, line: Line, spoken: Line | Traceback) -> bool:
    """Whether these words stand behind many errors of this kind, so that not all of them were kept."""
    said: tuple[Line | Traceback, ...] = (*log.tracebacks, *log.lines)
    return line.number < spoken.number < line.last and any(
        each.source == spoken.source and 0 <= line.number - each.number <= NEAR and _kind(each) == _kind(spoken)
        for each in said
    )


def _kind(each: Line | Traceback) -> object:
    return (each.exception, each.place) if isinstance(each, Traceback) else re.sub(r"\d+", "", each.text)


def _has_finished(log: Log, spoken: Line | Traceback) -> bool:
    """Whether the process that printed this says further down that it is done; another one's word does not count.

    What a scheduler says is of the whole job, whichever rank says that it is done.
    """
    if isinstance(spoken, Line) and _OF_JOB.match(spoken.text):
        return any(
            line.source == spoken.source and _last_of(line) > _last_of(spoken) for line in _said(log, "finished")
        )
    if _is_over_for(log, spoken) or (spoken.who.rank is None and log.world_size not in (None, 1)):
        return False
    return any(_last_of(line) > _last_of(spoken) and _is_by_the_same(line, spoken) for line in _said(log, "finished"))


def _last_of(each: Line | Traceback | Exit) -> int:
    """The last line that is counted in this one."""
    return max(each.number, each.last) if isinstance(each, Line) else each.number


def _is_by_the_same(line: Line, spoken: Line | Traceback) -> bool:
    mine, other = line.who, spoken.who
    return line.source == spoken.source and (mine.rank, mine.local_rank) == (other.rank, other.local_rank)


def _is_over_for(log: Log, spoken: Line | Traceback) -> bool:
    """Whether nobody can have caught it: it went through the whole script, or a process of this source failed behind it."""
    if any(each.source == spoken.source and each.code and each.number >= spoken.number for each in log.exits):
        return True
    raised = [
        each for each in log.tracebacks if each.source == spoken.source and 0 <= spoken.number - each.number <= NEAR
    ]
    return any(each.frames and each.frames[0].function == "<module>" for each in raised)
