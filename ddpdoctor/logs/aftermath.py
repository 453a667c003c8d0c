"""What came after something that was printed: progress, the words of code that caught it, a word that all ended well."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from ddpdoctor.facts.log import Exit, Log, LogLine, Traceback, Who
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import FAR_LINES, FEW_PROGRESS_LINES, HANDLER_LINES, PROGRESS_LINES, SUMMARY_LINES
from ddpdoctor.logs.line_meaning import NCCL_READY, NCCL_RETURNED, is_of_whole_job, is_progress, is_work_of_job

__all__ = ["Aftermath", "last_number"]

Printed = TypeVar("Printed", LogLine, Traceback)


def last_number(each: LogLine | Traceback | Exit) -> int:
    """The number of the last line that is counted in this one."""
    return max(each.number, each.last) if isinstance(each, LogLine) else each.number


class Aftermath:
    """Answers what came after a line, an exception or an exit of one log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.progress: dict[int, list[LogLine]] = defaultdict(list)
        """By source, those of its last lines that look like a job that works."""
        for line in log.tails:
            if is_progress(line):
                self.progress[line.source].append(line)
        self._caught = _by_source(line for line, _ in context_lines(log, "handled"))
        self._finished = _by_source(line for line, _ in context_lines(log, "finished"))
        self._group_finished = _by_source(line for line, _ in context_lines(log, "group_finished"))
        self._given_up = _by_source(each for each in log.tracebacks if each.exception.endswith("ChildFailedError"))
        self._through_script = {
            (each.source, each.number)
            for each in log.tracebacks
            if each.frames and each.frames[0].function == "<module>"
        }
        """Where the exceptions stand that went through the whole script."""
        self._last_exit: dict[int, int] = {}
        """By source, the line of the last process that did not end well."""
        for ended in log.exits:
            if ended.code:
                self._last_exit[ended.source] = max(ended.number, self._last_exit.get(ended.source, 0))

    def progress_after(self, each: LogLine | Traceback | Exit) -> list[LogLine]:
        """Those of the last lines of its source that come after it and look like a job that works."""
        after = last_number(each)
        return [line for line in self.progress.get(each.source, ()) if line.number > after]

    def progress_after_failure(self, line: LogLine) -> list[LogLine]:
        """The same; after an error that NCCL returned, NCCL's information does not count unless a communicator got ready."""
        progress = self.progress_after(line)
        returned = [
            each
            for each in (self._log.tails if NCCL_RETURNED.search(line.text) else ())
            if each.source == line.source and each.number >= line.number and NCCL_RETURNED.search(each.text)
        ]
        if not returned or any(_is_ready(each, returned[-1]) for each in progress):
            return progress
        return [each for each in progress if "NCCL INFO" not in each.text]

    def survived(self, printed: LogLine | Traceback) -> bool:
        """Whether the process that printed this continued, or the log says that the error did no harm."""
        return self.recovered(printed) or self.continued(printed)

    def recovered(self, printed: LogLine | Traceback) -> bool:
        """Whether the log itself says that this error did no harm: it was caught, or the job ended well after it."""
        return self._ended_well(printed) or self._is_caught(printed) or self._has_finished(printed)

    def continued(self, printed: LogLine | Traceback) -> bool:
        """Whether the process that printed this wrote enough after it, whatever the log says of the error."""
        source, who = printed.source, printed.who
        if isinstance(printed, Traceback) and printed.is_title:
            return False
        if self._made_good.get(source, -1) >= printed.number:
            return True
        if isinstance(printed, Traceback) and self._ended_script(printed):
            return False
        progress = self.progress_after(printed)
        if isinstance(printed, LogLine) and "NCCL WARN" in printed.text:
            progress = [line for line in progress if "NCCL INFO" not in line.text]
        is_line = isinstance(printed, Traceback) and printed.is_line and not self._log.exits
        if is_line and len(progress) >= FEW_PROGRESS_LINES:
            return True
        if who.rank is not None or who.local_rank is not None:
            return sum(_speaks_as(line.who, who) for line in progress) >= FEW_PROGRESS_LINES
        if self._lives_on(printed, progress):
            return True
        is_alone = len({line.who.rank for line in progress} - {None}) <= 1 and not self._log.exits
        enough = PROGRESS_LINES if is_alone and self._log.world_size in (None, 1) else FAR_LINES
        return len(progress) >= PROGRESS_LINES and self._log.sources[source].lines > last_number(printed) + enough

    def _ended_script(self, each: Traceback) -> bool:
        """Whether it went through a script of the job from its first line on: what follows is of another process or run."""
        is_scripts = (
            bool(each.own_frames) and each.frames[0] == each.own_frames[0] and each.frames[0].file.endswith(".py")
        )
        return is_scripts and (each.source, each.number) in self._through_script and each.who.rank is None

    def is_made_good(self, ended: Exit) -> bool:
        """Whether torchrun restarted the workers after this exit, and the job then continued for long or ended well."""
        if ended.by != "torchrun":
            return False
        source = self._log.sources[ended.source]
        progress = self.progress_after(ended)
        is_far = source.lines > ended.number + FAR_LINES
        is_back = (
            source.restarted_at is not None and source.restarted_at >= ended.number and self._ends_with_steps(progress)
        )
        return self._ended_well(ended) or is_back or (is_far and len(progress) >= PROGRESS_LINES)

    def restart_worked(self, line: LogLine) -> bool:
        """Whether the launcher restarted the workers at or after this line, and the job then went on."""
        restarted_at = self._log.sources[line.source].restarted_at
        return restarted_at is not None and line.number <= restarted_at and line.source in self._made_good

    def _ends_with_steps(self, progress: list[LogLine]) -> bool:
        """Whether training steps came after a restart, the last of them at the end of the log."""
        steps = [line for line in progress if is_work_of_job(line.text)]
        ends = [line.number for line in self._log.tails if steps and line.source == steps[0].source]
        return len(steps) > 1 and max(ends) - steps[-1].number < HANDLER_LINES

    @functools.cached_property
    def _made_good(self) -> dict[int, int]:
        """By source, the line of the last exit that a restart made good."""
        exits = sorted(self._log.exits, key=lambda each: each.number)
        return {each.source: each.number for each in exits if self.is_made_good(each)}

    def _lives_on(self, printed: LogLine | Traceback, progress: list[LogLine]) -> bool:
        """Whether its process id printed more, and none failed after it: a process may live on after what failed the job."""
        pid, after = printed.who.pid, last_number(printed)
        if pid is None or self._log.exits or sum(line.who.pid == pid for line in progress) < FEW_PROGRESS_LINES:
            return False
        return not any(
            each.source == printed.source and each.number > after and each.who.pid != pid
            for each in self._log.tracebacks
        )

    def _ended_well(self, each: LogLine | Traceback | Exit) -> bool:
        """Whether torchrun or DeepSpeed says further down in the same source that its workers finished, and had not given up."""
        finished = self._group_finished.get(each.source, ())
        if not finished or any(e.source == each.source and e.by == "DeepSpeed" for e in self._log.exits):
            return False
        given_up = [failed.number for failed in self._given_up.get(each.source, ())]
        return any(
            last_number(line) > last_number(each)
            and _may_share_a_node(line.who, each.who)
            and not any(each.number - SUMMARY_LINES < number < last_number(line) for number in given_up)
            for line in finished
        )

    def _is_caught(self, printed: LogLine | Traceback) -> bool:
        """Whether the line, or one right after it by the same process, says how it continues, and it did."""
        caught = [line for line in self._caught.get(printed.source, ()) if _speaks_as(line.who, printed.who)]
        near = [
            line
            for line in caught
            if 0 <= line.number - printed.number <= HANDLER_LINES and last_number(line) >= last_number(printed)
        ]
        if not near and not any(self._is_repeated(line, printed) for line in caught):
            return False
        ranks = {line.who.rank for line in self.progress_after(near[-1] if near else printed)}
        return printed.who.rank in ranks or (ranks == {None} and not self._is_over_for(printed))

    def _is_repeated(self, line: LogLine, printed: LogLine | Traceback) -> bool:
        """Whether these words stand after many errors of this kind, so that not all of them were kept."""
        errors: tuple[LogLine | Traceback, ...] = (*self._log.tracebacks, *self._log.lines)
        return line.number < printed.number < line.last and any(
            each.source == printed.source
            and 0 <= line.number - each.number <= HANDLER_LINES
            and _kind(each) == _kind(printed)
            for each in errors
        )

    def _has_finished(self, printed: LogLine | Traceback) -> bool:
        """Whether the process that printed this says further down that it is done; another one's word does not count.

        What a scheduler says is of the whole job, whichever rank says that it is done.
        """
        later = [line for line in self._finished.get(printed.source, ()) if last_number(line) > last_number(printed)]
        if not later or (isinstance(printed, LogLine) and is_of_whole_job(printed)):
            return bool(later)
        if self._is_over_for(printed) or (printed.who.rank is None and self._log.world_size not in (None, 1)):
            return False
        return any(_speaks_as(line.who, printed.who) for line in later)

    def _is_over_for(self, printed: LogLine | Traceback) -> bool:
        """Whether nobody can have caught it: it went through the whole script, or a process of this source failed after it."""
        if self._last_exit.get(printed.source, -1) >= printed.number:
            return True
        return any(
            (printed.source, printed.number - lines) in self._through_script for lines in range(HANDLER_LINES + 1)
        )


def _by_source(printed: Iterable[Printed]) -> dict[int, list[Printed]]:
    found: dict[int, list[Printed]] = defaultdict(list)
    for each in printed:
        found[each.source].append(each)
    return found


def _speaks_as(one: Who, other: Who) -> bool:
    """Whether both are one rank; where that is not known, one local rank or both nobody in particular."""
    return one.rank == other.rank and (other.rank is not None or one.local_rank == other.local_rank)


def _may_share_a_node(one: Who, other: Who) -> bool:
    pairs = ((one.host, other.host), (one.task, other.task), (one.node_rank, other.node_rank))
    return all(a is None or b is None or a == b for a, b in pairs)


def _kind(each: LogLine | Traceback) -> object:
    """What errors have in common that differ in numbers alone."""
    return (each.exception, each.place) if isinstance(each, Traceback) else re.sub(r"\d+", "", each.text)


def _is_ready(line: LogLine, returned: LogLine) -> bool:
    """Whether a process of NCCL got its communicator after it had returned an error."""
    is_later = line.number > returned.number and line.who.pid == returned.who.pid
    return is_later and NCCL_READY.search(line.text) is not None
