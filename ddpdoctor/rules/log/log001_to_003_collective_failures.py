"""LOG001, LOG002, LOG003: ranks that waited for others in a collective, and what their lines show about those others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Severity, Speaker, Where
from ddpdoctor.logs.collective_waits import (
    Participant,
    collective_waits,
    ranks_named_missing,
)
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_meaning import is_omission
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.missing_participants import missing_participants
from ddpdoctor.logs.traceback_of_line import traceback_of
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.collective_names import calls, names
from ddpdoctor.rules.log.headlines import headline, ranks_named
from ddpdoctor.rules.log.signatures import explained, shortened
from ddpdoctor.rules.log.watchdog_timeouts import WATCHDOGS, stuck

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.ras import Peer, Ras

SIGNATURES = (
    r"\bcaught collective operati(?:on timeout|o?n?$)",
    r"ran for \d+ milliseconds before timing out",
    r"To avoid data inconsistency, we are taking the entire process down",
    r"Timed out waiting \d+ms for (recv|send) operation to complete",
    r"Some NCCL operations have failed or timed out",
    r"Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms",
    r"lagging/dead/mismatched ranks",
    r"Timed out receiving the shared seed from the distribtued store",
    r"submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder",
    r"due to a collective timeout from (?:this local\b| ?rank \d+)",
    r"successfully reached monitoredBarrier, but received errors while waiting",
    r"\[TC\].{0,200}? Operation timed out after \d+ ms",
    r"\bDistBackendError: NCCL operation timed out\b",
)

DECIDES = (
    "run again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 and `ddpdoctor triage` its dumps, or run "
    "`ddpdoctor hang` on every node while it hangs, to decide"
)
DECIDES_WITHOUT_NCCL = "run `ddpdoctor hang` on every node while it hangs to decide"


@cause(
    "LOG001",
    "collective-timeout",
    Severity.ERROR,
    stage=CausalStage.HANG,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    candidates=("PROBE006", "PROBE007", "SCRIPT024", "SCRIPT026", "SCRIPT032", "SCRIPT065"),
    signatures=(*SIGNATURES, *WATCHDOGS),
)
def collective_timeout(log: Log) -> Iterator[Finding]:
    """A collective timed out because a rank did not take part in it.

    ## Why it matters
    The ranks that waited print `Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=ALLREDUCE, …)` (NCCL) or
    `Timed out waiting 1800000ms for recv operation to complete` (Gloo), 10 or 30 minutes after the job stopped. The rank that
    prints it is usually the victim; its exit code -6 only means that the watchdog ended it.

    ## Fix
    Find the rank that printed no such line or has the lowest sequence number; what it did in those minutes is the cause. Raise
    the timeout only if its work is legitimate: `init_process_group(timeout=timedelta(hours=2))`.

    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (TORCH_FR_BUFFER_SIZE since torch 2.9) records the last calls of each rank, and `ddpdoctor
    triage` reads these dumps; TORCH_DISTRIBUTED_DEBUG=DETAIL names ranks that call different collectives.

    ## Example

        [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, …) ran for 600000 milliseconds

        # before: only rank 1 skips the collective
        if loss_is_finite:
            dist.all_reduce(loss)
        # after
        dist.all_reduce(loss)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (watchdogHandler), gloo/transport/tcp/unbound_buffer.cc.
    """
    lines = matching_lines(log, SIGNATURES)
    if not lines:
        yield from stuck(log)
        yield from _noticed(log)
    if not lines or history_of(log).is_harmless(lines):
        return
    missing = missing_participants(log)
    ranks = tuple(sorted({party.who.rank for party in missing if party.who.rank is not None}))
    waits = collective_waits(log)
    text, undetermined, is_known = _message(log, lines, missing, ranks)
    ranks = ranks if is_known else ()
    first = waits[0].line if waits else lines[0]
    traceback = next((t for line in lines if (t := traceback_of(log, line)) is not None), None)
    place = waits[0].place if waits else (None if traceback is None else traceback.place)
    yield Finding(
        text,
        tuple(Evidence(log.place(line.source, line.number), shortened(line.text)) for line in lines[:4]),
        where=Where(
            host=missing[0].who.host if len(missing) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            file=log.sources[first.source].name if place is None else place.file,
            line=first.number if place is None else place.line,
        ),
        ranks=ranks,
        quote=shortened(lines[0].text),
        certainty=Certainty.CANDIDATES,
        undetermined=undetermined,
    )


def _noticed(log: Log) -> Iterator[Finding]:
    """Watchdogs that print where they noticed a failure, in a log that does not show what failed."""
    notices = list(context_lines(log, "watched"))
    others = log.tracebacks or log.unfinished or log.xids or explained(log, "cause", "umbrella", "consequence")
    if not notices or others or history_of(log).is_harmless([line for line, _ in notices]):
        return
    who = ranks_named(sorted({line.who.rank for line, _ in notices if line.who.rank is not None}))
    numbers = ", ".join(sorted({m["seq"] for _, m in notices}, key=int)[:4])
    yield Finding(
        headline(who, f"watchdog noticed a failure of collective number {numbers}"),
        tuple(Evidence(log.place(line.source, line.number), shortened(line.text)) for line, _ in notices[:4]),
        where=Where(file=log.sources[notices[0][0].source].name, line=notices[0][0].number),
        quote=shortened(notices[0][0].text),
        certainty=Certainty.CANDIDATES,
        undetermined=f"Either it timed out or NCCL failed: {DECIDES}",
    )


def _message(
    log: Log, lines: list[LogLine], missing: list[Participant], ranks: tuple[int, ...]
) -> tuple[str, str, bool]:
    """Which ranks waited where and for which, what that does not decide, and whether the log shows that `ranks` are the cause."""
    waits = collective_waits(log)
    own = [wait for wait in waits if wait.who.rank in ranks]
    of_others = [wait for wait in waits if wait not in own] or waits
    collective = calls(of_others) if waits else "a collective"
    speakers = sorted(_timed_out(lines) - {*ranks})
    victims = names(waits, ranks) or ranks_named(speakers)
    decides = DECIDES if any("NCCL" in line.text for line in log.lines) else DECIDES_WITHOUT_NCCL
    if not missing:
        if log.world_size is None or len(history_of(log).speaking_ranks) < log.world_size:
            decides = f"run `ddpdoctor triage` on the output of all ranks, or {decides.removeprefix('run ')}"
        return (
            headline(victims, f"timed out in {collective}"),
            f"Unknown which rank was missing: {decides}",
            True,
        )
    victims = victims or "the others"
    why = _why(() if own else ranks, decides)
    absent = ranks_named([*ranks])
    if absent and not history_of(log).speaking_ranks & {*ranks} and not ranks_named_missing(log)[0]:
        what = f"no output; {victims} timed out in {collective}"
        why = f"{why}. If this log does not contain what {absent} printed, {absent} may not be the cause"
        return headline(absent, what), why, _is_complete(log, ranks)
    collective += f" (waited in {calls(own)})" if own else ""
    named = (
        absent if len(missing) == len(ranks) and len(ranks) > 1 else ", ".join(_name(party) for party in missing[:8])
    )
    return headline(named, f"did not join {victims} in {collective}"), why, True


_TIMED_OUT = re.compile(r"due to a collective timeout from +rank (\d+)")
"""Whom the other ranks name, after a signal through the store."""


def _timed_out(lines: list[LogLine]) -> set[int]:
    """The ranks that timed out: those that another rank names, or those that print it."""
    named = {int(found[1]) for line in lines if (found := _TIMED_OUT.search(line.text)) is not None}
    return named or {line.who.rank for line in lines if line.who.rank is not None}


def _name(party: Participant) -> str:
    return party.name + (f" on {party.who.host}" if party.who.host else "")


ENOUGH_OTHERS = 3
"""With this many waiting ranks, the silence of one more rank is not an effect of an incomplete log."""


def _is_complete(log: Log, absent: tuple[int, ...]) -> bool:
    """Whether silence is evidence: an excerpt of a log may lack what `absent` printed."""
    history = history_of(log)
    if any(is_omission(line) for line in log.tails):
        return False
    if history.is_excerpt:
        others = len(history.speaking_ranks - {*absent})
        return len(absent) == 1 and (log.world_size is not None or others >= ENOUGH_OTHERS)
    return len(absent) == 1 or log.world_size is not None


def _why(ranks: tuple[int, ...], decides: str) -> str:
    alone = "rank 0 works alone for longer than the timeout (SCRIPT065), " if ranks == (0,) else ""
    return (
        f"Either {alone}it ended or is stopped (PROBE006, PROBE007), takes another path in the script (SCRIPT024, SCRIPT026), or "
        f"has fewer batches (SCRIPT032): read its own output, or {decides}"
    )


@cause(
    "LOG002",
    "watchdog-stuck",
    Severity.ERROR,
    stage=CausalStage.HANG,
    kind="umbrella",
    signatures=(
        r"Heartbeat monitor timed out",
        r"watchdog got stuck for \d+ seconds",
        r"due to ProcessGroupNCCL watchdog hang",
    ),
)
def watchdog_stuck() -> None:
    """The NCCL watchdog is blocked in a call that does not return.

    ## Why it matters
    `ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives` recommends
    a longer heartbeat, which rarely helps. A CUDA or NCCL call of that process hangs, or Python holds the GIL: the GPU or the
    driver does not respond, or a communicator deadlocks while it is destroyed.

    ## Fix
    Read the kernel log of that node (`sudo dmesg | grep -i xid`), and before the process ends its native stack (`py-spy dump
    --native -p PID`, or `gdb -p PID -batch -ex "thread apply all bt"`).

    ## Example

        ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives

        # before: only a longer heartbeat
        TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=3600 torchrun … train.py
        # after: find the blocked call on that node
        py-spy dump --native -p PID

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (heartbeatMonitor).
    """


@cause(
    "LOG003",
    "nccl-id-exchange-timeout",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    candidates=("PROBE006", "SCRIPT024", "SCRIPT065"),
    signatures=(
        r"retri?e[ie]?ving ncclUniqueId from \[\d+\]",
        r"Timeout waiting for key: \S+",
    ),
)
def nccl_id_exchange_timeout() -> None:
    """Rank 0 did not publish the NCCL id, because it did not reach the first collective.

    ## Why it matters
    `[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but
    store->get('0') got error`: the store works, but the rank in the second brackets did not create the id. It was still preparing
    data, had ended, or ran another branch of the script.

    ## Fix
    Read what the rank in the second brackets printed last, and what it does before its first collective. Let all ranks reach the
    first collective within the timeout, or raise `timeout=` of init_process_group.

    ## Example

        [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] …, but store->get('0') got error

        # before: rank 0 prepares the data for longer than the timeout
        dist.init_process_group("nccl")
        # after
        dist.init_process_group("nccl", timeout=timedelta(hours=2))

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (broadcastUniqueNCCLID).
    https://github.com/NVIDIA/nccl/issues/708 (one process preprocessed for longer than the timeout; a streaming data
    set avoided it).
    """


@collective_timeout.look
def collective_timeout_in_hang(hang: Hang) -> Iterator[Finding]:
    """A rank is missing in a collective, or all ranks joined and it does not finish."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.MISSING):
        advice = "; what it did since then is the cause: run `ddpdoctor hang` on its node"
        yield conflict_finding(hang, each, advice).if_certain(each.is_certain)
    for each in conflicts(hang, ConflictCause.NO_DUMP):
        severity = None if each.waiting else Severity.WARNING
        yield conflict_finding(hang, each, "; read its own output" if each.waiting else "", severity)
    for each in conflicts(hang, ConflictCause.NOT_STARTED):
        yield conflict_finding(hang, each)
    for each in conflicts(hang, ConflictCause.TOGETHER):
        advice = "; a GPU, a link, or the network fails: run `ddpdoctor check` on these nodes"
        yield conflict_finding(hang, each, advice).if_certain(each.is_certain)


@collective_timeout.look
def all_wait(hang: Hang) -> Iterator[Finding]:
    """All observed ranks wait in the same call: the missing rank was not observed, or the collective does not finish."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import jobs_of, ranks_of

    for job in jobs_of(hang):
        waiting = job.of(Activity.COLLECTIVE)
        if not waiting or len(job.waiting) < len(job.ranks) or job.missing:
            continue
        if len({str(each.frame) for each in waiting}) > 1:
            continue
        world = waiting[0].process.world_size
        observed = len(job.ranks)
        where = f" at {waiting[0].frame}" if waiting[0].frame is not None else ""
        more = (
            "no rank is missing; run `ddpdoctor check`: a network, a GPU, or a mismatch of calls blocks them"
            if observed == world
            else f"{observed} of {world} ranks were examined; run `ddpdoctor hang` on the nodes of the others"
        )
        yield Finding(
            f"{ranges(ranks_of(waiting))} all wait in a collective{where}; {more}",
            (Evidence("hang.processes", f"{observed} ranks in a collective", "a rank outside the collective"),),
            severity=Severity.WARNING,
        )


@collective_timeout.look
def lagging_in_hang(hang: Hang) -> Iterator[Finding]:
    """Ranks whose count of a collective is lower than that of most ranks, or a few ranks that wait for most."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.facts.gaps import not_here
    from ddpdoctor.rules.hang.ras_findings import ras_finding

    if not hang.ras:
        not_here("NCCL's RAS was not queried")
    for each in hang.ras:
        slower, ahead = _slower(each), _ahead(each)
        if slower:
            kind, late, low, high = slower
            kind = kind or "collectives"
            yield ras_finding(
                each,
                late,
                f"{ranges(p.rank for p in late)} launched {low} {kind}, the others up to {high} (NCCL RAS); stuck if a second "
                "snapshot some seconds later shows the same numbers",
                Severity.WARNING,
            )
        elif ahead:
            kind, early, low, high = ahead
            yield replace(
                ras_finding(
                    each,
                    early,
                    f"{ranges(p.rank for p in early)} launched {high} {kind or 'collectives'} and wait for others; "
                    f"{each.tallies[kind][low]} ranks, which NCCL RAS does not list, launched {low}; stuck if a second snapshot "
                    "some seconds later shows the same numbers",
                    Severity.WARNING,
                ),
                ranks=(),
            )


def _slower(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which a minority of the ranks has a lower count."""
    for kind in sorted({kind for peer in ras.peers for kind in peer.counts}):
        counted = [peer for peer in ras.peers if kind in peer.counts]
        high = max(*ras.tallies.get(kind, (0,)), *(peer.counts[kind] for peer in counted))
        late = tuple(peer for peer in counted if peer.counts[kind] < high)
        if late and (len(late) * 2 < (ras.size or len(counted)) or ras.size is None):
            return kind, late, min(peer.counts[kind] for peer in late), high
    return None


def _ahead(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which the listed ranks have a higher count than the many that are not listed."""
    for kind, tally in sorted(ras.tallies.items()):
        listed = tuple(peer for peer in ras.peers if kind in peer.counts)
        if len(tally) > 1 and listed and all(peer.counts[kind] == max(tally) for peer in listed):
            return kind, listed, min(tally), max(tally)
    return None
