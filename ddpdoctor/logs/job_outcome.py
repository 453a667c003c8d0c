"""What the log as a whole says: whether the job failed, who went on after a line, who never printed anything."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.facts.log import Exit, Line, Log, Traceback
from ddpdoctor.logs.recovery import ended_well, is_overcome, is_quoted, last_words

__all__ = [
    "ENDED_BY_LAUNCHER",
    "RETURNED",
    "first_attempt",
    "has_failed",
    "is_over",
    "last_failure",
    "own_exits",
    "says_goodbye",
    "shows_no_work",
    "went_on",
    "went_on_for_long",
]

ENDED_BY_LAUNCHER = -15
"""SIGTERM: how launchers end the workers that are well."""

_FAILED = re.compile(
    r"\b(ABORTED|FAILED|Aborted|Killed|(?<!\d )Terminated|Terminated +\S*(?:python|run|launch|deepspeed))\b|core dumped"
    r"|srun: error|exit(ed with)?( exit)? code:? [1-9]"
    r"|non-zero (exit )?status|terminate called|taking the entire process down|Segmentation fault|Bus error"
    r"|died with <Signals|CANCELLED AT|RendezvousTimeoutError|OOMKilled|CrashLoopBackOff|There are not enough slots available"
    r"|\b(?:INFO|WARN) \S+\.(?:c[cu]|h):\d+ -> ?[1-7]\b|NCCL WARN (?:Net : )?Call to [a-z]+ failed : "
    r"|Could not load library libcudnn|error while loading shared libraries: "
    r"|returned [\w() ]+, retrying \((?P<most>\d+)/(?P=most)\)|Test NCCL failure|MPI_ERRORS_ARE_FATAL"
    r"|Received sigquit from a child process|Encountered a bad command exit code"
    r"|Killing subprocess \d|closing signal SIG[TH]"
    r"|remote process exited or there was a network error"
    r"|DistBackendError|ncclRemoteError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError",
)

RETURNED = re.compile(r"\bINFO (?P<file>\S+\.(?:c[cu]|h)):\d+ -> ?(?P<code>[1-7])\b")
"""How NCCL passes an error on."""

_READY = re.compile(r"Init COMPLETE|Connected all (?:rings|trees)")
"""What NCCL tells when a communicator is there."""

OTHERS_LINES = 300
"""Where lines have no rank, only so many of them behind a traceback show that somebody handled it."""
OWN_LINES = 10
FEW_LINES = 3


def own_exits(log: Log) -> list[Exit]:
    """How each worker ended, once, without those that the launcher ended and those that a restart made good."""
    once = {(e.who.host, e.who.rank, e.who.pid): e for e in log.exits}
    return [e for e in once.values() if e.code not in (0, ENDED_BY_LAUNCHER) and not _is_made_good(log, e)]


def _is_made_good(log: Log, each: Exit) -> bool:
    """Whether torchrun started the workers once more behind this exit, and the job then went on for long or ended well."""
    if each.by != "torchrun":
        return False
    is_far = log.sources[each.source].lines > each.number + OTHERS_LINES
    return ended_well(log, each) or (is_far and len(last_words(log, each.source, each.number)) >= OWN_LINES)


def went_on(log: Log, spoken: Line | Traceback) -> bool:
    """Whether the process that printed this went on as if nothing had been, or the log says that it got over it."""
    return is_overcome(log, spoken) or _spoke_on(log, spoken)


def _spoke_on(log: Log, spoken: Line | Traceback) -> bool:
    """Whether the process that printed this wrote enough behind it."""
    if any(e.source == spoken.source and e.number >= spoken.number and _is_made_good(log, e) for e in log.exits):
        return True
    after = max(spoken.number, spoken.last if isinstance(spoken, Line) else 0)
    words = last_words(log, spoken.source, after)
    if isinstance(spoken, Line) and "NCCL WARN" in spoken.text:
        words = [word for word in words if "NCCL INFO" not in word.text]
    if isinstance(spoken, Traceback) and spoken.is_line and not log.exits and len(words) >= FEW_LINES:
        return True
    who = spoken.who
    if who.rank is not None or who.local_rank is not None:
        own = [
            w for w in words if w.who.rank == who.rank and (who.rank is not None or w.who.local_rank == who.local_rank)
        ]
        return len(own) >= FEW_LINES
    if who.pid is not None and sum(w.who.pid == who.pid for w in words) >= FEW_LINES:
        others = any(t.source == spoken.source and t.number > after and t.who.pid != who.pid for t in log.tracebacks)
        if not log.exits and not others:  # a process may live on after what failed the job
            return True
    alone = len({w.who.rank for w in words} - {None}) <= 1 and not log.exits
    enough = after + (OWN_LINES if alone and log.world_size in (None, 1) else OTHERS_LINES)
    return len(words) >= OWN_LINES and log.sources[spoken.source].lines > enough


def last_failure(log: Log) -> Line | None:
    """The first of the last lines that says that the job failed, and behind which nothing went on; None without one."""
    ends = (line for line in log.tails if _FAILED.search(line.text) and not is_overcome(log, line))
    return next((line for line in ends if len(_words_behind(log, line)) < OWN_LINES), None)


def _words_behind(log: Log, line: Line) -> list[Line]:
    """What looks like a job that runs behind a line; behind NCCL's returned error its information shows nothing of the kind."""
    words = last_words(log, line.source, max(line.number, line.last))
    return _without_information(log, line, words) if RETURNED.search(line.text) else words


def _without_information(log: Log, spoken: Line | Traceback, words: list[Line]) -> list[Line]:
    """Without what NCCL tells, where it passed an error on and the same process did not get its communicator after that."""
    returned = [
        line
        for line in log.tails
        if line.source == spoken.source and line.number >= spoken.number and RETURNED.search(line.text)
    ]
    if not returned or any(
        _READY.search(word.text) and word.who.pid == returned[-1].who.pid and word.number > returned[-1].number
        for word in words
    ):
        return words
    return [word for word in words if "NCCL INFO" not in word.text]


def is_over(log: Log, lines: Sequence[Line]) -> bool:
    """Whether those who printed these lines, or the job as a whole, went on as if nothing had been."""
    lines = [line for line in lines if not is_quoted(line)]
    if not lines or (lines[0].who.rank is not None and all(_spoke_on(log, line) for line in lines)):
        return True
    return not has_failed(log) and (
        all(went_on(log, line) for line in lines)
        or all(len(last_words(log, line.source, max(line.number, line.last))) >= OWN_LINES for line in lines)
    )


def went_on_for_long(log: Log, source: int, number: int) -> bool:
    """Whether the next process that ended in this source did so far behind the line: something else may have ended it."""
    ends = [each.begin or each.number for each in log.tracebacks if each.source == source and each.number >= number]
    ends += [each.number for each in log.exits if each.source == source and each.number >= number]
    return bool(ends) and min(ends) - number > OTHERS_LINES


@functools.lru_cache(4)
def first_attempt(log: Log) -> Log:
    """The log up to the first restart of the workers, where it shows how they failed; else all of it.

    What comes later, a port that is still taken or a store with old keys, follows from the restart.
    """
    if all(source.restarted_at is None and not source.attempt for source in log.sources) or not has_failed(log):
        return log
    early = replace(
        log,
        lines=tuple(each for each in log.lines if _is_early(log, each)),
        tracebacks=tuple(each for each in log.tracebacks if _is_early(log, each)),
        unfinished=tuple(each for each in log.unfinished if _is_early(log, each)),
        exits=tuple(each for each in log.exits if _is_early(log, each)),
        tails=tuple(each for each in log.tails if _is_early(log, each)) if has_failed(log) else log.tails,
    )
    is_telling = early.tracebacks or early.exits or any("failed (exitcode" in line.text for line in early.lines)
    return early if is_telling else log


def _is_early(log: Log, each: Line | Traceback | Exit) -> bool:
    source = log.sources[each.source]
    return not source.attempt and (source.restarted_at is None or each.number <= source.restarted_at)


@functools.lru_cache(4)
def has_failed(log: Log) -> bool:
    """Whether something shows that the job did not end well: an exit code, an abort, a traceback that ended a process."""
    if own_exits(log):
        return True
    ends = (line for line in (*log.tails, *log.lines) if _FAILED.search(line.text) and not is_overcome(log, line))
    if any(len(_words_behind(log, line)) < OWN_LINES for line in ends):
        return True
    if any("Connection closed by peer [" in line.text and not went_on(log, line) for line in log.lines):
        return True  # Gloo prints it when a peer is lost, not when it leaves in order
    farewell = [line for line in log.lines if "waiting on exit barrier" in line.text]
    return any(
        not went_on(log, each)
        and not says_goodbye(each)
        and (
            _is_agents_end(each)
            or not any(line.source == each.source and abs(line.number - each.number) < 120 for line in farewell)
        )
        for each in log.tracebacks
    )


def says_goodbye(each: Traceback) -> bool:
    """Whether it is of a launcher that waited for the others at its end, when its own workers were done."""
    return any(frame.function == "_exit_barrier" for frame in each.frames)


def shows_no_work(log: Log) -> bool:
    """Whether the log is an excerpt in which nothing looks like a job that runs: how it went is not there."""
    return all(
        source.lines <= FEW_LINES * OWN_LINES and not last_words(log, i, 0) for i, source in enumerate(log.sources)
    )


def _is_agents_end(each: Traceback) -> bool:
    """Whether torchrun itself ended on a store that was gone while it still watched its workers."""
    return each.exception.endswith("RendezvousConnectionError") and any(
        frame.file.endswith(("/bin/torchrun", "/torch/distributed/run.py")) for frame in each.frames
    )
