"""PROBE005 to PROBE009, PROBE017, PROBE504: a rank that died, failed, stopped, was late, was busy, or computed
wrong values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.dumps.rank_activity import Activity
from ddpdoctor.facts.probe import COLLECTIVE_PHASES, Kind, Observation, Probe, RankReport
from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.observation_findings import lazily, observed

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.log import Log

ENDED = (Kind.IMPORT_FAILED, Kind.DIED, Kind.EXCEPTION)
BEHIND_SECONDS = 15.0
WAITED_SECONDS = 3.0


def _phase(probe: Probe, observation: Observation) -> str:
    """The phase of the rank that ended: its own report is more exact than a neighbor's observation."""
    report = probe.report_of(observation.ranks[0]) if observation.ranks else None
    return observation.phase or (report.phase if report else "")


@cause("PROBE005", "rank-died-before-init", Severity.ERROR, stage=CausalStage.DEATH)
def rank_died_before_init(probe: Probe) -> Iterator[Finding]:
    """A rank ended, or failed with its own error, before the process group was formed.

    ## Why it matters
    Its traceback does not show the rank and appears only on its node. All other ranks wait in init_process_group
    for up to half an hour, until `wait timeout after …ms, keys: …`.

    ## Fix
    Read that rank's own output: its first exception, signal, or exit code is the reason. SIGKILL usually comes from
    the OOM killer or the scheduler; an import error means a broken environment on that node.

    ## Example

        rank 1 on node1: ImportError: libcudart.so.12: cannot open shared object file: No such file or directory

        # before, on node1: another environment than on node0
        python train.py
        # after, on every node
        source /shared/env/bin/activate && python train.py
    """
    for finding in observed(o for o in probe.seen(*ENDED) if _phase(probe, o) not in COLLECTIVE_PHASES):
        yield finding.reworded(after=lazily(probe))


@cause(
    "PROBE006",
    "rank-died-after-init",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    candidates=("SCRIPT025", "LOG021"),
)
def rank_died_after_init(probe: Probe) -> Iterator[Finding]:
    """A rank ended, or failed with its own error, after the process group was formed.

    ## Why it matters
    With Gloo the peers print `Connection closed by peer` with an address within a second; with NCCL they wait for
    the watchdog. Launchers then report each surviving rank as the root cause.

    ## Fix
    Read that rank's own output before the messages of its peers.

    ## Example

        rank 1:  KeyError: 'momentum'
        rank 0:  RuntimeError: … Connection closed by peer [10.77.0.2]:41234

        # before, in train.py
        momentum = config["momentum"]
        # after
        momentum = config.get("momentum", 0.9)
    """
    yield from observed(o for o in probe.seen(*ENDED) if _phase(probe, o) in COLLECTIVE_PHASES)


@cause("PROBE007", "rank-stopped", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_stopped(probe: Probe) -> Iterator[Finding]:
    """A rank's process exists but is stopped.

    ## Why it matters
    After SIGSTOP, in a debugger, or in a frozen container or cgroup, the process neither answers nor ends. The others
    hang in their collective until `Timed out waiting …ms`, and then each surviving rank looks like the cause.

    ## Fix
    Continue the process on its node (`kill -CONT PID`) or end it; `grep State /proc/PID/status` shows T while it is
    stopped.

    ## Example

        rank 3 on node1 (pid 4711) is stopped

        # before, on node1
        grep State /proc/4711/status    # T (stopped)
        # after, on node1
        kill -CONT 4711
    """
    yield from observed(probe.seen(Kind.STOPPED), expected="state R or S")


@cause("PROBE008", "rank-behind", Severity.WARNING, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_behind(probe: Probe) -> Iterator[Finding]:
    """One rank was ready, or reached a collective, much later than all the others.

    ## Why it matters
    This is not a deadlock, but all others wait for it. With a short timeout they fail with `Timed out waiting …ms`.

    ## Fix
    Find out what slows that rank's node down: a cold file system cache, a busy disk, or other processes on its
    cores.

    ## Example

        rank 2 on n2 took 40 s to import torch, the others 4 s

        # before, on n2: the first import reads a cold network file system
        torchrun --nnodes 4 … train.py
        # after, on every node before the job
        python -c "import torch"
    """
    from statistics import median  # imports fractions and decimal

    times = [(r, r.import_seconds) for r in probe.ranks if r.import_seconds is not None]
    seconds = [took for _, took in times]
    usual = median(seconds) if len(seconds) > 2 else min(seconds, default=0.0)
    for report, took in times:
        if took > max(BEHIND_SECONDS, 5 * usual):
            yield _late(report, f"took {took:.0f} s to import torch, the others {usual:.0f} s", "import_seconds", took)
    for phase in ("barrier", "all_reduce"):
        waits = [(r, r.took[phase]) for r in probe.ranks if phase in r.took]
        longest = max((took for _, took in waits), default=0.0)
        last = [r for r, took in waits if took < longest * 0.2]
        if longest > WAITED_SECONDS and last and len(last) * 2 <= len(waits):
            for report in last:
                yield _late(
                    report, f"reached the first {phase} {longest:.1f} s after the others", f"took.{phase}", longest
                )


def _late(report: RankReport, what: str, path: str, seconds: float) -> Finding:
    return Finding(
        f"rank {report.rank} on {report.host} {what}",
        (Evidence(f"probe.ranks.{path}", f"{seconds:.1f}", "about as long as on the other ranks"),),
        where=Where(report.host, report.node_rank, report.rank, report.local_rank),
        ranks=(report.rank,),
    )


@cause("PROBE009", "rank-stuck-elsewhere", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_stuck_elsewhere(probe: Probe) -> Iterator[Finding]:
    """One rank is busy or blocked in other code while the others wait in a collective.

    ## Why it matters
    It waits for data, a file, a lock, or a computation and prints nothing. The ranks that reached the collective
    time out, with `Timed out waiting …ms for recv operation to complete`.

    ## Fix
    Correct what keeps this rank at that line. If no line is known, `py-spy dump --pid PID` on its host prints it. The stacks
    of the ranks that wait for it do not help.

    ## Example

        Timed out waiting 1800000ms for recv operation to complete

        # before: only rank 0 writes the file, and the others wait for it in all_reduce
        if rank == 0:
            save_checkpoint()          # takes an hour on a full file system
        dist.all_reduce(loss)
        # after
        if rank == 0:
            start_saving_in_background()
        dist.all_reduce(loss)
    """
    yield from observed(probe.seen(Kind.ELSEWHERE, Kind.UNINTERRUPTIBLE), expected="in the collective with the others")


@cause(
    "PROBE017",
    "collective-value-wrong",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"Out of bounds values : \d+ FAILED",),
)
def collective_value_wrong(probe: Probe) -> Iterator[Finding]:
    """A collective finished without an error and returned wrong numbers.

    ## Why it matters
    No message reports it: the training runs and diverges. PCIe access control or an IOMMU between GPUs, a forced
    NCCL_PROTO=LL128, and defective hardware cause this.

    ## Fix
    Repeat the probe with NCCL_P2P_DISABLE=1, then with another NCCL_PROTO, to find the path; take the GPU out of
    the job.

    ## Example

        Out of bounds values : 12 FAILED

        # before
        NCCL_PROTO=LL128 torchrun --nproc-per-node 8 train.py
        # after
        env -u NCCL_PROTO ddpdoctor probe
    """
    observations = probe.seen(Kind.WRONG_VALUE)
    expected = next((o.expected for o in observations if o.expected), "")
    if (
        2 < probe.world_size == len({rank for o in observations for rank in o.ranks})
    ):  # one of them sends the wrong values, and it is unknown which
        observations = (replace(observations[0], ranks=(), host=None, node_rank=None, local_rank=None),)
    yield from observed(observations, expected=expected)


@cause("PROBE504", "collective-differs", Severity.ERROR, stage=CausalStage.MISMATCH)
def collective_differs(probe: Probe) -> Iterator[Finding]:
    """One rank calls a different collective, or the same one with another shape or dtype.

    ## Why it matters
    Gloo aborts with `op.preamble.length <= op.nbytes` on either side, or returns without an error and hangs in the
    next collective; NCCL hangs or returns wrong values. No message names the rank that differs.

    ## Fix
    Look on that rank for a sitecustomize, a plugin, or another version of a package that replaces functions of
    torch.distributed. In your own job, TORCH_DISTRIBUTED_DEBUG=DETAIL prints both calls.

    ## Example

        [enforce fail at …/pair.cc:446] op.preamble.length <= op.nbytes. 4100 vs 4096

        # before: rank 1 has one element more
        x = torch.ones(1024 + rank)
        dist.all_reduce(x)
        # after
        x = torch.ones(1024)
        dist.all_reduce(x)
    """
    observations = probe.seen(Kind.MISMATCH)
    yield from observed(observations, expected=next((o.expected for o in observations if o.expected), ""))


HAVE_OWN_CAUSES = (Activity.COMPILING, Activity.BUILD_LOCK, Activity.INPUT)
"""Activities outside a collective that have their own causes."""


@rank_stopped.look
def stopped(hang: Hang) -> Iterator[Finding]:
    """A rank in state T or t."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import jobs_of, rank_finding, waiting_ranks_text

    for job in jobs_of(hang):
        for rank in job.of(Activity.STOPPED, Activity.TRACED):
            command = f"kill -CONT {rank.process.pid}" if rank.activity is Activity.STOPPED else None
            yield rank_finding(rank, f"{rank.process.title} {rank.words}{waiting_ranks_text(job)}", command)


@rank_behind.look
def behind(hang: Hang) -> Iterator[Finding]:
    """A rank that works while the others wait."""
    from ddpdoctor.dumps.outlier import is_stuck
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda rank: rank.activity not in HAVE_OWN_CAUSES and not is_stuck(rank))


@rank_stuck_elsewhere.look
def elsewhere(hang: Hang) -> Iterator[Finding]:
    """A rank that waits for something else, or blocks in the kernel."""
    from ddpdoctor.dumps.outlier import is_stuck
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import jobs_of, outlier_findings, rank_finding, waiting_ranks_text

    yield from outlier_findings(
        hang, lambda rank: rank.activity not in (*HAVE_OWN_CAUSES, Activity.KERNEL) and is_stuck(rank)
    )
    for job in jobs_of(hang):
        for rank in job.of(Activity.KERNEL):
            if rank.is_still:
                advice = " (a file system or driver does not answer; no signal ends it)"
                yield rank_finding(rank, f"{rank.process.title} {rank.words}{advice}{waiting_ranks_text(job)}")


GAVE_UP = (r"[Tt]imed out initializing process group in store based barrier",)
"""The error that every rank raises, the last one after half an hour."""


NEVER_REACHED = (r"(Connect to \S+|Call to connect) failed : (No route to host|Connection timed out)",)
"""A peer to which there was never a connection was not lost."""


_OF_RANK = re.compile(r"\bfrom rank (\d{1,6})\b")


@rank_died_before_init.look
def before_init(log: Log) -> Iterator[Finding]:
    """A rank ended before it joined the process group, and the others waited for it."""
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log500_uncaught_exception import Raised, raised_finding
    from ddpdoctor.rules.log.log501_worker_ended_without_traceback import PEERS_BEFORE, PEERS_OF_A_GROUP, crashed

    yield from raised_finding(log, Raised.BEFORE_JOINING)
    all_gave_up = matching_lines(log, GAVE_UP) and {exit_.code for exit_ in history_of(log).failed_exits} == {1}
    if matching_lines(log, PEERS_BEFORE) and not matching_lines(log, PEERS_OF_A_GROUP) and not all_gave_up:
        yield from crashed(log)


@rank_died_after_init.look
def after_init(log: Log) -> Iterator[Finding]:
    """A rank ended after the process group was formed, and the others lost their connection to it."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log500_uncaught_exception import Raised, raised_finding
    from ddpdoctor.rules.log.log501_worker_ended_without_traceback import PEERS_OF_A_GROUP, crashed

    yield from raised_finding(log, Raised.AFTER_JOINING)
    if matching_lines(log, PEERS_OF_A_GROUP):
        yield from crashed(log)
        yield from _silent(log)


def _silent(log: Log) -> Iterator[Finding]:
    """A process whose peers lost the connection to it, while it printed no error and no launcher reports how it ended."""
    from ddpdoctor.logs.collective_waits import collective_waits, participants
    from ddpdoctor.logs.exception_kinds import is_consequence
    from ddpdoctor.logs.history import history_of
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.ended_ranks import SIGKILL
    from ddpdoctor.rules.log.log500_uncaught_exception import traceback_groups
    from ddpdoctor.rules.log.log501_worker_ended_without_traceback import PEERS_OF_A_GROUP
    from ddpdoctor.rules.log.signatures import explained, shortened

    all_participants = participants(log)
    failed = [(line.source, line.who.rank) for line in explained(log, "cause", "umbrella", "consequence")]
    failed += [(trace.source, trace.who.rank) for trace in log.tracebacks if not is_consequence(trace)]
    ranks = {rank for _, rank in failed} | {exit_.who.rank for exit_ in log.exits if exit_.code}
    sources = {source for source, rank in failed if rank is None}
    silent = [p for p in all_participants if p.who.rank not in ranks - {None} and not set(p.sources) & sources]
    if (
        len(all_participants) - len(silent) < 1
        or len(silent) != 1
        or _highest_named(log) >= len(all_participants)
        or collective_waits(log)
        or matching_lines(log, NEVER_REACHED)
        or traceback_groups(log)
        or any(e.code == SIGKILL for e in history_of(log).failed_exits)
    ):
        return
    ended = silent[0]
    lost = matching_lines(log, PEERS_OF_A_GROUP)
    yield Finding(
        f"{ended.name}{f' on {ended.who.host}' if ended.who.host else ''}: ended without an error; its peers lost the connection",
        tuple(Evidence(log.place(line.source, line.number), shortened(line.text)) for line in lost[:3]),
        where=Where(host=ended.who.host, rank=ended.who.rank, node_rank=ended.who.node_rank),
        ranks=() if ended.who.rank is None else (ended.who.rank,),
        quote=shortened(lost[0].text) if lost else "",
        certainty=Certainty.CANDIDATES,
        undetermined="Either it left early with exit code 0 (SCRIPT025), was killed (LOG021), or crashed: run "
        "`sacct -j JOB --format=JobID,State,ExitCode`, or `echo $?` after the command, to decide",
    )


def _highest_named(log: Log) -> int:
    """The highest rank that any line names: if it exceeds those that printed something, not all ranks are in the log."""
    return max((int(match[1]) for line in log.lines for match in _OF_RANK.finditer(line.text)), default=-1)
