"""LOG001, LOG002, LOG003: ranks that waited for others in a collective, and what their lines say of those others."""

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
from ddpdoctor.rules.log.collective_names import call, calls, names, ranks_named
from ddpdoctor.rules.log.signatures import explained, shortened
from ddpdoctor.rules.log.watchdog_timeouts import WATCHDOGS, stuck

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.ras import Peer, Ras

SIGNATURES = (
    r"\bcaught collective operation timeout",
    r"ran for \d+ milliseconds before timing out",
    r"To avoid data inconsistency, we are taking the entire process down",
    r"Timed out waiting \d+ms for (recv|send) operation to complete",
    r"Some NCCL operations have failed or timed out",
    r"Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms",
    r"lagging/dead/mismatched ranks",
    r"Timed out receiving the shared seed from the distribtued store",
    r"submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder",
    r"due to a collective timeout from this local\b",
    r"successfully reached monitoredBarrier, but received errors while waiting",
)

DECIDES = (
    "a second run with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 (then `ddpdoctor triage` its dumps), or "
    "`ddpdoctor hang` on the nodes while it hangs"
)
DECIDES_WITHOUT_NCCL = "`ddpdoctor hang` on the nodes while it hangs"
_HEADS = re.compile(r"(?:\[[^\]]*\] ?)+")
"""What the watchdog puts before its words."""


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
    """A collective timed out because some rank did not take part in it.

    ## Why it matters
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=ALLREDUCE, …) ran for 600000 milliseconds"
    (NCCL) or "Timed out waiting 1800000ms for recv operation to complete" (Gloo) is printed by the ranks that waited,
    10 or 30 minutes after the job stopped. The rank that prints it is usually the victim; its exit code -6 is only the
    watchdog that ends the process.

    ## Fix
    Look at the rank that printed nothing, or whose sequence number is behind: what it did in those minutes is the cause.
    Raise the timeout only where the work is legitimate: init_process_group(timeout=timedelta(hours=2)).

    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (TORCH_FR_BUFFER_SIZE since torch 2.9) keeps what each rank called last, and
    `ddpdoctor triage` reads those dumps; TORCH_DISTRIBUTED_DEBUG=DETAIL names ranks that call different collectives.

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
    waited = collective_waits(log)
    text, undetermined, is_known = _told(log, lines, missing, ranks)
    ranks = ranks if is_known else ()
    first = waited[0].line if waited else lines[0]
    near = next((found for line in lines if (found := traceback_of(log, line)) is not None), None)
    place = waited[0].place if waited else (None if near is None else near.place)
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
    """Watchdogs that say where they noticed a failure, in a text that holds nothing of what it was."""
    found = list(context_lines(log, "watched"))
    others = log.tracebacks or log.unfinished or log.xids or explained(log, "cause", "umbrella", "consequence")
    if not found or others or history_of(log).is_harmless([line for line, _ in found]):
        return
    who = ranks_named(sorted({line.who.rank for line, _ in found if line.who.rank is not None})) or "a rank"
    numbers = ", ".join(sorted({m["seq"] for _, m in found}, key=int)[:4])
    yield Finding(
        f"the watchdog of {who} noticed a failure of the collective with number {numbers}: a time-out, or an error of NCCL",
        tuple(Evidence(log.place(line.source, line.number), shortened(line.text)) for line, _ in found[:4]),
        where=Where(file=log.sources[found[0][0].source].name, line=found[0][0].number),
        quote=shortened(found[0][0].text),
        certainty=Certainty.CANDIDATES,
        undetermined=f"Undetermined which, and whose: what stands above in the output decides, or {DECIDES}",
    )


def _told(log: Log, lines: list[LogLine], missing: list[Participant], ranks: tuple[int, ...]) -> tuple[str, str, bool]:
    """Who waited where for whom, what that leaves open, and whether the log shows that `ranks` are to blame."""
    waited = collective_waits(log)
    own = [wait for wait in waited if wait.who.rank in ranks]
    there = [wait for wait in waited if wait not in own] or waited
    seen = calls(there) if waited else shortened(_HEADS.sub("", lines[0].text))
    told = sorted({line.who.rank for line in lines if line.who.rank is not None} - {*ranks})
    who = names(waited, ranks) or ranks_named(told)
    decides = DECIDES if any("NCCL" in line.text for line in log.lines) else DECIDES_WITHOUT_NCCL
    if not missing:
        who = who or "a rank"
        if log.world_size is None or len(history_of(log).speaking_ranks) < log.world_size:
            decides = f"what the other ranks printed last decides, or {decides}"
        return f"{who} gave up waiting in a collective: {seen}", f"Undetermined who was missing: {decides}", True
    who = who or "the others"
    why = _why(() if own else ranks, decides)
    absent = ranks_named([*ranks])
    if absent and not history_of(log).speaking_ranks & {*ranks} and not ranks_named_missing(log)[0]:
        text = (
            f"nothing of {absent} is in this log, while {who} waited in a collective: {seen}. Either {absent} did not take "
            f"part in it, or what {absent} printed is not here"
        )
        return text, why, _is_whole(log, ranks)
    seen += f" ({'; '.join(f'{names([wait])} waited in {call(wait)}' for wait in own[:4])})" if own else ""
    named = ", ".join(party.name + (f" on {party.who.host}" if party.who.host else "") for party in missing[:8])
    return f"{named} did not take part in the collective in which {who} waited: {seen}", why, True


ENOUGH_OTHERS = 3
"""So many ranks that waited, and one between them that says nothing, are no accident of a cut."""


def _is_whole(log: Log, absent: tuple[int, ...]) -> bool:
    """Whether silence counts: a text that was cut out of a log may have lost what `absent` printed."""
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
        f"Undetermined why: {alone}it died or is stopped (PROBE006, PROBE007), takes another path (SCRIPT024, SCRIPT026) or "
        f"has fewer batches (SCRIPT032); its own output decides, or {decides}"
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
    """The NCCL watchdog thread of a rank is blocked in a call that does not return.

    ## Why it matters
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives":
    the message recommends a longer heartbeat, which rarely helps. A CUDA or NCCL call of that very process hangs, or its
    Python holds the GIL: a sick GPU, a deadlock while a communicator is destroyed, a driver that does not answer.

    ## Fix
    Read the kernel log of that node (dmesg | grep -i xid) and the native stack of the process (py-spy dump --native -p
    PID, gdb -p PID -batch -ex "thread apply all bt") before it is ended.

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
    """Rank 0 never published the id of the communicator, so it did not reach the first collective.

    ## Why it matters
    "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but
    store->get('0') got error": the store works. The rank in the second brackets, which has to make the id, was somewhere
    else: still preparing data, dead, or in another branch of the script.

    ## Fix
    Look at what the rank in the second brackets printed last, and at what it does before its first collective. Let all
    ranks reach the first collective within the timeout, or raise timeout= of init_process_group.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (broadcastUniqueNCCLID).
    """


@collective_timeout.look
def collective_timeout_in_hang(hang: Hang) -> Iterator[Finding]:
    """A rank is missing in a collective, or nobody is and it does not end."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.MISSING):
        words = "; what it did since is the cause: `ddpdoctor hang` on its node, or py-spy dump, tells"
        yield conflict_finding(hang, each, words).if_certain(each.is_certain)
    for each in conflicts(hang, ConflictCause.NO_DUMP):
        severity = None if each.waiting else Severity.WARNING
        yield conflict_finding(hang, each, "; read its own output" if each.waiting else "", severity)
    for each in conflicts(hang, ConflictCause.NOT_STARTED):
        yield conflict_finding(hang, each)
    for each in conflicts(hang, ConflictCause.TOGETHER):
        words = "; look for a sick GPU, link or network: `ddpdoctor check` on these nodes"
        yield conflict_finding(hang, each, words).if_certain(each.is_certain)


@collective_timeout.look
def all_wait(hang: Hang) -> Iterator[Finding]:
    """All ranks that were seen wait alike: the one that is missing is somewhere else."""
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
        seen = len(job.ranks)
        where = f" at {waiting[0].frame}" if waiting[0].frame is not None else ""
        more = (
            "none is elsewhere; a network or a GPU that does not answer, or calls that do not fit: the dumps tell"
            if seen == world
            else f"{seen} of {world} ranks were seen; the rank to blame is on another node: run ddpdoctor hang there"
        )
        yield Finding(
            f"{ranges(ranks_of(waiting))} all wait in a collective{where}; {more}",
            (Evidence("hang.processes", f"{seen} ranks in a collective", "one that is elsewhere"),),
            severity=Severity.WARNING,
        )


@collective_timeout.look
def lagging_in_hang(hang: Hang) -> Iterator[Finding]:
    """Ranks whose count of a collective is behind that of most, or the few that wait for most."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.facts.gaps import not_here
    from ddpdoctor.rules.hang.ras_findings import ras_finding

    if not hang.ras:
        not_here("NCCL's RAS was not asked")
    for each in hang.ras:
        behind, ahead = _behind_of_hang(each), _ahead(each)
        if behind:
            kind, late, low, high = behind
            kind = kind or "collectives"
            yield ras_finding(
                each,
                late,
                f"NCCL's RAS: {ranges(p.rank for p in late)} launched {low} {kind}, the others up to {high}; "
                "one snapshot: it is stuck if a second one some seconds later shows the same numbers",
                Severity.WARNING,
            )
        elif ahead:
            kind, early, low, high = ahead
            yield replace(
                ras_finding(
                    each,
                    early,
                    f"NCCL's RAS: {ranges(p.rank for p in early)} launched {high} {kind or 'collectives'} and wait for others, "
                    f"of which {each.tallies[kind][low]} launched {low}; RAS does not list those; one snapshot: it is stuck if a "
                    "second one some seconds later shows the same numbers",
                    Severity.WARNING,
                ),
                ranks=(),
            )


def _behind_of_hang(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which a minority of the ranks is behind."""
    for kind in sorted({kind for peer in ras.peers for kind in peer.counts}):
        counted = [peer for peer in ras.peers if kind in peer.counts]
        high = max(*ras.tallies.get(kind, (0,)), *(peer.counts[kind] for peer in counted))
        late = tuple(peer for peer in counted if peer.counts[kind] < high)
        if late and (len(late) * 2 < (ras.size or len(counted)) or ras.size is None):
            return kind, late, min(peer.counts[kind] for peer in late), high
    return None


def _ahead(ras: Ras) -> tuple[str, tuple[Peer, ...], int, int] | None:
    """The first kind of collective in which the only ranks that are listed came further than the many that are not."""
    for kind, tally in sorted(ras.tallies.items()):
        listed = tuple(peer for peer in ras.peers if kind in peer.counts)
        if len(tally) > 1 and listed and all(peer.counts[kind] == max(tally) for peer in listed):
            return kind, listed, min(tally), max(tally)
    return None
