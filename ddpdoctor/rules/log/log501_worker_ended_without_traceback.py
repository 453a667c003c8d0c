"""LOG501: processes that ended with a signal or an exit code and printed no reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.log import FATAL, Exit, Log, LogLine, Traceback, TracebackFrame
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import EXCERPT_LINES, MESSAGE_LINES
from ddpdoctor.logs.exception_kinds import is_consequence, is_of_launcher
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.launcher_exits import SIGNALS
from ddpdoctor.logs.line_meaning import NCCL_RETURNED
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.ended_ranks import SIGKILL, ended
from ddpdoctor.rules.log.headlines import place_name
from ddpdoctor.rules.log.log004_to_007_peer_closed import CLOSED as CLOSED_BY_PEERS
from ddpdoctor.rules.log.log015_021_killed import SIGKILLED
from ddpdoctor.rules.log.log504_pod_not_started import RAN, keep_failing
from ddpdoctor.rules.log.signatures import explained, finding_of, shortened, softly_explained
from ddpdoctor.rules.log.what_to_collect import after_exit, what_next

__all__ = ["CANCELLED", "CRASHED", "PEERS_BEFORE", "PEERS_OF_A_GROUP", "crashed"]

PEERS_OF_A_GROUP = (
    r"Connection closed by (remote )?peer",
    r"Connection reset by peer",
    r"Watchdog caught collective operation timeout",
    r"Timed out waiting \d+ms for (recv|send) operation",
    r"due to a network error or a remote process exiting prematurely",
    r"Horovod has been shut down",
)
"""Messages of ranks that had formed a group with the one that ended."""

PEERS_BEFORE = (
    r"\d+/\d+ clients joined",
    r"wait timeout after \d+ms, keys:",
    r"RendezvousTimeoutError",
    r"worker_count=\d+",
)
"""Messages of ranks that waited for it to join."""

NOT_ITS_OWN = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
"""Signals that another process sends."""
NAMES = {number: name for name, number in SIGNALS.items() if name not in NOT_ITS_OWN}

CRASHED = (
    r"Segmentation fault",
    r"Unexpected segmentation fault encountered in worker",
    r"\S:\d+: [^\n]{1,300}: Assertion ['`][^\n]{1,300} failed\.",
    r"Fatal Python error: ",
    r"\bsegfault at [0-9a-f]+ ip [^\n]{0,120} in lib(nccl|cuda|torch|c10|nvidia)",
    r"malloc_consolidate\(\): |double free or corruption|corrupted double-linked list",
    r"\b(?:malloc|free|realloc)\(\): (?:invalid|corrupted|unaligned|double)",
    r"return code:? (?:= )?-(4|6|7|8|11)\b",
    r": Assertion failure at \S{1,200}:\d+: ",
    r"exited on signal (4|6|7|8|11)\b",
    r"\(core dumped\)",
    r"line \d+: +\d+ (Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)\b",
    r"died with <Signals\.SIG(SEGV|BUS|ABRT|ILL|FPE): \d+>",
    r"terminated with signal SIG(SEGV|BUS|ABRT|ILL|FPE)",
    r"KILLED BY SIGNAL: (4|6|7|8|11) ",
    r"THE EXIT STRING: (Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception) ",
    r"\[\d+\] +(?:\+ *)?\d+ +(?:segmentation fault|bus error|abort|illegal hardware instruction|floating point exception)\b",
    r"Worker exit type: SYSTEM_ERROR",
    r"[Aa]ctor is dead because it was killed",
    r"[Ww]orker process has died",
    r"\*\*\* SIG(?:SEGV|ABRT|BUS|ILL|FPE) received by PID \d+",
    r"\bthread '[^'\n]{1,60}' (?:\(\d+\) )?panicked at ",
    r"\bF (?:tensorflow/|external/|third_party/|torch_xla/)[\w./-]{1,200}:\d+\] ",
    r":\d+\] Check failed: ",
    r"\*\*\* stack smashing detected \*\*\*",
    r"\b[Ww]orker proc \S{1,60} died unexpectedly",
)


LAST_WORDS = (
    r"\S:\d+: [^\n]{1,300}: Assertion ['`][^\n]{1,300} failed\.",
    r"Fatal Python error: [a-z_]{3,60}: ",
    r": Assertion failure at \S{1,200}:\d+: ",
    r"malloc_consolidate\(\): |double free or corruption|corrupted double-linked list",
    r"\b(?:malloc|free|realloc)\(\): (?:invalid|corrupted|unaligned|double)",
    r"\bthread '[^'\n]{1,60}' (?:\(\d+\) )?panicked at ",
    r"\bF (?:tensorflow/|external/|third_party/|torch_xla/)[\w./-]{1,200}:\d+\] ",
    r":\d+\] Check failed: ",
    r"\*\*\* stack smashing detected \*\*\*",
)
"""What says more about an end than the name of its signal."""
ABORTED = re.compile(r"\bAborted\b|return code = -6\b|on signal 6\b|SIGABRT")

_FOLLOWS = re.compile(
    f"{ABORTED.pattern}|Worker exit type: SYSTEM_ERROR|orker process has died|worker died or was killed"
)
"""Ends of which the reason may stand above, in what the process printed."""

HINTS = {
    "SIGBUS": "Free space in /dev/shm (df -h /dev/shm) and on the disk of each memory-mapped file (HOST001, HOST002). "
}
"""What to do after a signal that usually has one reason."""

CLOSED = re.compile(r"Killing subprocess \d|closing signal SIG")
OTHERS_ENDED = "the launcher ended all workers of its node; the log does not show why"
SIGNALLED = (r"Received \S+ death signal", r"\bgot signal: \d+")
"""What a launcher prints when it gets a signal: the reason why it ends its workers."""
OF_RAY = re.compile(r"Worker exit type: SYSTEM_ERROR|orker process has died|[Aa]ctor is dead because ")
BY_RAY = re.compile(r"killed by `?ray\.kill|ray\.actor\.exit_actor|intended exit", re.IGNORECASE)
WHY_OF_RAY = (
    "Either it was OOM-killed (LOG014), it crashed, or `ray stop` ended it: run `tail "
    "/tmp/ray/session_latest/logs/worker-*{}.err; sudo dmesg -T | grep -i 'killed process'` on its node to decide"
)

CANCELLED = (r"CANCELLED AT \S+ \*\*\*$",)
"""What slurmstepd also prints about the other tasks when one of them failed."""


@cause(
    "LOG501",
    "worker-ended-without-traceback",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    candidates=("LOG014",),
    signatures=CRASHED,
)
def worker_ended_without_traceback(log: Log) -> Iterator[Finding]:
    """A worker crashed or ended with an exit code, and printed no traceback.

    ## Why it matters
    The launcher prints only `exitcode : -11` (a segmentation fault), -6 (an abort), -7 (a bus error), or a number that the
    script chose. Python could not print where it happened.

    ## Fix
    After a signal, start the ranks with PYTHONFAULTHANDLER=1, which prints the Python stack of a crash, and run
    `sudo dmesg -T | grep -E "segfault|traps"` on that node. After an exit code, run `torchrun --log-dir logs --tee 3` and read
    what that rank printed last.

    ## Example

        exitcode  : -11 (pid: 4312)

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        PYTHONFAULTHANDLER=1 torchrun --nproc-per-node 8 train.py
    """
    raised = {(each.source, each.number) for each in log.tracebacks if each.exception != FATAL}
    crashes = [line for line in matching_lines(log, CRASHED) if (line.source, line.number) not in raised]
    lines = [line for line in crashes if not _is_explained(log, line)]
    ended_workers = [] if matching_lines(log, (*PEERS_OF_A_GROUP, *PEERS_BEFORE)) else list(crashed(log))
    yield from ended_workers
    if lines and not ended_workers and not history_of(log).failed_exits:
        of_ray = [line for line in lines if OF_RAY.search(line.text)]
        title = "crashed without a traceback"
        yield _of_ray(log, of_ray) if of_ray else finding_of(log, lines, title, blames_speaker=True)
    last = history_of(log).last_failure
    raised_ones = [t for t in (*log.tracebacks, *log.unfinished) if not is_of_launcher(t)]
    is_unexplained = not (
        lines or ended_workers or history_of(log).failed_exits or raised_ones or log.xids or _has_reason(log)
    )
    failing = list(keep_failing(log)) if is_unexplained else []
    yield from failing
    if last is not None and is_unexplained and not failing and not NCCL_RETURNED.search(last.text):
        is_closed = CLOSED.search(last.text) is not None
        title = OTHERS_ENDED if is_closed else "the job failed without a reason in the log"
        yield replace(finding_of(log, [last], title, blames_speaker=is_closed), fix=what_next(log, last.text))
    elif last is None and is_unexplained and not failing:
        yield from _of_launcher(log)


def _of_launcher(log: Log) -> Iterator[Finding]:
    """Only the launcher's own exception is in the text: a worker failed, and its output is not there."""
    for each in (t for t in log.tracebacks[:1] if t.is_summary and not t.is_exit_barrier):
        line = LogLine(each.source, each.number, f"{each.exception}: {each.message}", each.who)
        found = finding_of(log, [line], "a worker failed; its own output is not in the log", blames_speaker=False)
        yield replace(found, fix=what_next(log, line.text, each))


def _of_ray(log: Log, lines: list[LogLine]) -> Finding:
    """Ray names the process and three possible reasons for its end."""
    if all(BY_RAY.search(line.text) for line in lines):
        found = finding_of(log, lines, "the driver ended a Ray actor", blames_speaker=False)
        return replace(
            found, fix="Read the first error above it: the driver ends the other actors after one of them failed"
        )
    pids = {line.who.pid for line in lines if line.who.pid is not None}
    pid = pids.pop() if len(pids) == 1 else None
    title, of_pid = (f"the Ray worker with pid {pid} died", f"-{pid}") if pid is not None else ("a Ray worker died", "")
    return finding_of(log, lines, title, WHY_OF_RAY.format(of_pid), blames_speaker=True)


def _is_explained(log: Log, line: LogLine) -> bool:
    """Whether the process aborted after an error that it had printed: C++ aborts after an exception."""
    known = explained(log, "cause", "umbrella", "consequence") if _FOLLOWS.search(line.text) else []
    errors = [error for error in known if error not in matching_lines(log, CRASHED)]
    return any(error.source == line.source and error.who.may_be(line.who) for error in errors)


def _has_reason(log: Log) -> bool:
    known = explained(log, "cause", "umbrella", "consequence")
    is_explained = any(line not in matching_lines(log, RAN) for line in known)
    return is_explained or any(context_lines(log, "nccl_warns")) or bool(matching_lines(log, SIGNALLED))


def _is_unclaimed(log: Log, raised: list[Traceback], exits: Sequence[Exit]) -> bool:
    """Whether a rank raised an exception and no exit of it is reported: summaries may number ranks in another way."""
    follows = {(line.source, line.number) for line in explained(log, "consequence", "umbrella")}
    own = [t for t in raised if not any((t.source, t.number + i) in follows for i in range(MESSAGE_LINES))]
    return bool({t.who.rank for t in own} - {None} - {each.who.rank for each in exits})


def crashed(log: Log) -> Iterator[Finding]:
    """Exit codes that no traceback and no line of that rank explains, one finding per code."""
    soft = softly_explained(log)  # warnings, which ended nothing
    lines = [line for line in explained(log, "cause", "umbrella") if (line.source, line.number) not in soft]
    raised = [t for t in (*log.tracebacks, *log.unfinished) if not is_consequence(t)]
    itself = matching_lines(log, CRASHED + SIGKILLED + CANCELLED)
    speakers = {(t.source, t.who.rank) for t in raised}
    speakers |= {(line.source, line.who.rank) for line in lines if line not in itself}
    ranks = {rank for _, rank in speakers if rank is not None}
    closed = matching_lines(log, CLOSED_BY_PEERS)
    peers_lost = {line.who.rank for line in explained(log, "consequence")} - {None}  # C++ also aborts after a lost peer
    by_code: dict[int, list[Exit]] = {}
    exits = history_of(log).failed_exits
    is_unclaimed = _is_unclaimed(log, raised, exits)
    is_of_kernel = not raised and any(context_lines(log, "kernel_note"))  # LOG011 reports it
    for each in exits:
        if each.code == 1 and (is_unclaimed or is_of_kernel):
            continue
        if each.code == 1 and not each.is_first and ranks and log.sources[each.source].lines <= EXCERPT_LINES:
            continue  # what it printed may have been left out
        if each.code in (1, -SIGNALS["SIGABRT"]) and each.who.rank in peers_lost:
            continue
        if each.code == 1 and each.who.rank is None and any(each.who.may_be(line.who) for line in closed):
            continue
        has_spoken = (
            (each.source, None) in speakers or each.who.rank in ranks or (each.who.rank is None and bool(speakers))
        )
        if not has_spoken and each.code != SIGKILL:
            by_code.setdefault(each.code, []).append(each)
    for code, those in by_code.items():
        name = NAMES.get(-code, "")
        how = f"ended by {name} (exit code {code})" if name else f"ended with exit code {code}"
        place = _place(log, those)
        where = f" at {place_name(place.file, place.line)}" if place else ", no traceback"
        one = replace(ended(log, those, f"{how}{where}"), fix=HINTS.get(name, "") + after_exit(code))
        one = _with_last_words(log, one, those) if name else one
        yield one if place is None else replace(one, where=replace(one.where, file=place.file, line=place.line))


def _with_last_words(log: Log, found: Finding, exits: list[Exit]) -> Finding:
    """With what C or Python printed when it ended the process, beyond the name of the signal."""
    said = [line for line in matching_lines(log, LAST_WORDS) if line.source == exits[0].source]
    own = [line for line in said if any(each.who.may_be(line.who) for each in exits)]
    if len({line.text for line in own}) != 1:
        return found
    words = shortened(own[0].text.strip().lstrip("#>* "))
    evidence = Evidence(log.place(own[0].source, own[0].number), words)
    return replace(found, quote=words, evidence=(evidence, *found.evidence))


def _place(log: Log, exits: list[Exit]) -> TracebackFrame | None:
    """Where one of these processes was when its signal arrived, as faulthandler prints it."""
    fatal = [t for t in log.tracebacks if t.exception == FATAL and t.source == exits[0].source]
    return next((t.place for t in fatal if any(t.who.may_be(exit.who) for exit in exits)), None)
