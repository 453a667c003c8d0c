"""The history of each process of a log, built once: what it printed of interest, in order, and how it and the job ended."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.log import (
    EventKind,
    Exit,
    JobOutcome,
    Log,
    LogEvent,
    LogLine,
    LogProcess,
    ProcessOutcome,
    Traceback,
)
from ddpdoctor.logs.aftermath import Aftermath, last_number
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import EXCERPT_LINES, EXIT_BARRIER_LINES, FAR_LINES, PROGRESS_LINES
from ddpdoctor.logs.interruption import was_interrupted
from ddpdoctor.logs.line_meaning import is_quoted, is_work_of_job, reports_failure

__all__ = ["ENDED_BY_LAUNCHER", "LogHistory", "history_of"]

ENDED_BY_LAUNCHER = -15
"""SIGTERM: how launchers end the workers that are well."""

_PEER_LOST = "Connection closed by peer ["
"""Gloo prints it when a peer is lost, not when it leaves in order."""
_AT_EXIT_BARRIER = "waiting on exit barrier"
_MARKS = (
    (EventKind.CAUGHT, "handled"),
    (EventKind.FINISHED, "finished"),
    (EventKind.GROUP_FINISHED, "group_finished"),
)
_ERRORS = (EventKind.EXCEPTION, EventKind.EXIT, EventKind.FAILURE, EventKind.PEER_LOST)
_ENDS = (EventKind.FINISHED, EventKind.GROUP_FINISHED)

_ProcessKey = tuple[int, int | None, int | None, int | None]
"""Its source, its rank, its local rank, and its process id where both are unknown."""


@functools.lru_cache(8)
def history_of(log: Log) -> LogHistory:
    """The history of this log; the same object each time it is asked for."""
    return LogHistory(log)


class LogHistory:
    """What became of the processes of one log, and of the job."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._aftermath = Aftermath(log)
        self.survived = self._aftermath.survived
        """Whether the process that printed a line or an exception continued, or the log says that it did no harm."""
        self.progress_after = self._aftermath.progress_after
        """The last lines of the same source after a line or an exception that look like a job that works."""

    @functools.cached_property
    def processes(self) -> tuple[LogProcess, ...]:
        """Everybody who printed anything or is named by a launcher, in the order of the log."""
        first: dict[_ProcessKey, LogLine | Traceback | Exit] = {}
        for each in (*self._log.spoken, *self._log.tails):
            first.setdefault(_key(each), each)
        speaking = {_key(each) for group in (self._log.lines, self._log.tails, self._log.tracebacks) for each in group}
        events: dict[_ProcessKey, list[LogEvent]] = defaultdict(list)
        for event in self._events():
            events[_key(event.printed)].append(event)
        return tuple(_process(key, each, key in speaking, events[key]) for key, each in first.items())

    @functools.cached_property
    def outcome(self) -> JobOutcome:
        """How the job ended: failed where a process failed and nobody had interrupted it, else completed where one says so."""
        outcomes = {process.outcome for process in self.processes}
        if ProcessOutcome.FAILED in outcomes:
            return JobOutcome.INTERRUPTED if was_interrupted(self._log) else JobOutcome.FAILED
        if any(event.kind in _ENDS for process in self.processes for event in process.events):
            return JobOutcome.COMPLETED
        return JobOutcome.RUNNING if self._aftermath.progress else JobOutcome.UNKNOWN

    @property
    def has_failed(self) -> bool:
        """Whether something shows that the job did not end well: an exit code, an abort, an exception that ended a process."""
        return self.outcome is JobOutcome.FAILED

    @functools.cached_property
    def failed_exits(self) -> tuple[Exit, ...]:
        """How each worker ended, once, without those that the launcher ended and those that a restart made good."""
        once = {(each.who.host, each.who.rank, each.who.pid): each for each in self._log.exits}
        failed = (each for each in once.values() if each.code not in (0, ENDED_BY_LAUNCHER))
        return tuple(each for each in failed if not self._aftermath.is_made_good(each))

    @functools.cached_property
    def last_failure(self) -> LogLine | None:
        """The first of the last lines that says that the job failed, and after which nothing continued; None without one."""
        return next((line for line in self._log.tails if reports_failure(line) and self._is_final(line)), None)

    @functools.cached_property
    def speaking_ranks(self) -> frozenset[int]:
        """Every rank that printed anything."""
        return frozenset(each.rank for each in self.processes if each.rank is not None and each.speaks)

    @functools.cached_property
    def is_excerpt(self) -> bool:
        """Whether so little is here, and nothing of a job that works, that the log does not show how the job went."""
        progress = self._aftermath.progress
        return all(source.lines <= EXCERPT_LINES and not progress.get(i) for i, source in enumerate(self._log.sources))

    def is_harmless(self, lines: Sequence[LogLine]) -> bool:
        """Whether those who printed these lines, or the job as a whole, continued as if nothing had happened."""
        lines = [line for line in lines if not is_quoted(line)]
        if not lines or (lines[0].who.rank is not None and all(map(self._aftermath.continued, lines))):
            return True
        return not self.has_failed and (
            all(map(self.survived, lines))
            or self._steps_end(lines)
            or all(len(self.progress_after(line)) >= PROGRESS_LINES for line in lines)
        )

    def _steps_end(self, lines: Sequence[LogLine]) -> bool:
        """Whether NCCL only warned, and the last line of the source is a training step: its collectives work."""
        if not all("NCCL WARN" in line.text for line in lines):
            return False
        last = {line.source: line for line in self._log.tails if line.text.strip()}
        return all(
            line.source in last and last[line.source].number > line.number and is_work_of_job(last[line.source].text)
            for line in lines
        )

    def ran_on_after(self, source: int, number: int) -> bool:
        """Whether the next process that ended in this source did so far after the line: something else may have ended it."""
        ended: tuple[Traceback | Exit, ...] = (*self._log.tracebacks, *self._log.exits)
        ends = [each for each in ended if each.source == source and each.number >= number]
        numbers = [each.begin or each.number if isinstance(each, Traceback) else each.number for each in ends]
        return min(numbers, default=number) - number > FAR_LINES

    @functools.cached_property
    def first_attempt(self) -> Log:
        """The log up to the first restart of the workers, where it shows how they failed; else all of it.

        What comes later, a port that is still taken or a store with old keys, follows from the restart.
        """
        log = self._log
        if all(each.restarted_at is None and not each.attempt for each in log.sources) or not self.has_failed:
            return log
        early = replace(
            log,
            lines=tuple(each for each in log.lines if _is_early(log, each)),
            tracebacks=tuple(each for each in log.tracebacks if _is_early(log, each)),
            unfinished=tuple(each for each in log.unfinished if _is_early(log, each)),
            exits=tuple(each for each in log.exits if _is_early(log, each)),
            tails=tuple(each for each in log.tails if _is_early(log, each)),
        )
        is_telling = early.tracebacks or early.exits or any("failed (exitcode" in line.text for line in early.lines)
        return early if is_telling else log

    def _events(self) -> Iterator[LogEvent]:
        log = self._log
        farewells = [line for line in log.lines if _AT_EXIT_BARRIER in line.text]
        failed = set(self.failed_exits)
        for traceback in log.tracebacks:
            if traceback.exception == "SystemExit" and traceback.message in ("", "0", "None"):
                continue  # it ended in order
            yield LogEvent(EventKind.EXCEPTION, traceback, self._ended_its_process(traceback, farewells))
        for ended in log.exits:
            yield LogEvent(EventKind.EXIT, ended, ended in failed)
        for line in dict.fromkeys((*log.tails, *log.lines)):
            if reports_failure(line):
                yield LogEvent(EventKind.FAILURE, line, self._is_final(line))
        for line in log.lines:
            if _PEER_LOST in line.text:
                yield LogEvent(EventKind.PEER_LOST, line, not self.survived(line))
        for kind, name in _MARKS:
            yield from (LogEvent(kind, line) for line, _ in context_lines(log, name))
        for lines in self._aftermath.progress.values():
            yield from (LogEvent(EventKind.PROGRESS, line) for line in lines)

    def _is_final(self, line: LogLine) -> bool:
        """Whether the log does not show that the job continued after a line that says that it failed."""
        if self._aftermath.recovered(line) or self._aftermath.restart_worked(line):
            return False
        return len(self._aftermath.progress_after_failure(line)) < PROGRESS_LINES

    def _ended_its_process(self, each: Traceback, farewells: Sequence[LogLine]) -> bool:
        """Whether nothing continued after this exception, and it is not of a launcher whose workers were done."""
        if each.is_exit_barrier or self.survived(each):
            return False
        return _is_of_lost_store(each) or not any(
            line.source == each.source and abs(line.number - each.number) < EXIT_BARRIER_LINES for line in farewells
        )


def _key(each: LogLine | Traceback | Exit) -> _ProcessKey:
    who = each.who
    is_named = who.rank is not None or who.local_rank is not None
    return each.source, who.rank, who.local_rank, None if is_named else who.pid


def _process(
    key: _ProcessKey, first: LogLine | Traceback | Exit, speaks: bool, events: Sequence[LogEvent]
) -> LogProcess:
    ordered = tuple(sorted(events, key=lambda event: last_number(event.printed)))
    return LogProcess(key[0], first.who, *key[1:], speaks, ordered, _outcome(ordered))


def _outcome(events: Sequence[LogEvent]) -> ProcessOutcome:
    """How a process ended, by its events in order."""
    if any(event.is_fatal for event in events):
        return ProcessOutcome.FAILED
    own = [each for each in events if not (isinstance(each.printed, Exit) and each.printed.code == ENDED_BY_LAUNCHER)]
    if any(event.kind in _ERRORS for event in own):
        return ProcessOutcome.RECOVERED
    if any(event.kind in _ENDS for event in own):
        return ProcessOutcome.DONE
    return ProcessOutcome.CUT_OFF if events else ProcessOutcome.UNKNOWN


def _is_of_lost_store(each: Traceback) -> bool:
    """Whether torchrun itself ended on a store that was gone while it still watched its workers."""
    return each.exception.endswith("RendezvousConnectionError") and any(
        frame.file.endswith(("/bin/torchrun", "/torch/distributed/run.py")) for frame in each.frames
    )


def _is_early(log: Log, each: LogLine | Traceback | Exit) -> bool:
    source = log.sources[each.source]
    return not source.attempt and (source.restarted_at is None or each.number <= source.restarted_at)
