"""PROBE005 to PROBE009, PROBE017, PROBE504: a rank that died, failed, was stopped, is late or elsewhere, or went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from ddpdoctor.facts.probe import COLLECTIVE_PHASES, Kind, Observation, Probe, RankReport
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule
from ddpdoctor.rules.observation_findings import lazily, observed

ENDED = (Kind.IMPORT_FAILED, Kind.DIED, Kind.EXCEPTION)
BEHIND_SECONDS = 15.0
WAITED_SECONDS = 3.0


def _phase(probe: Probe, each: Observation) -> str:
    """The phase of the rank that ended: its own report knows better than a neighbour that saw it end."""
    report = probe.report_of(each.ranks[0]) if each.ranks else None
    return each.phase or (report.phase if report else "")


@rule("PROBE005", "rank-died-before-init", Severity.ERROR)
def before_init(probe: Probe) -> Iterator[Finding]:
    """A rank ended, or failed with an error of its own, before the process group was formed.

    ## Why it matters
    Its traceback carries no rank and stands on its own node only; everybody else waits in init_process_group for up to
    half an hour, until `wait timeout after …ms, keys: …`.

    ## Fix
    Read that rank's own output: its first exception, signal or exit code is the reason. SIGKILL is usually the
    out-of-memory killer or the scheduler; an import error is a broken environment on that node.
    """
    for found in observed(o for o in probe.seen(*ENDED) if _phase(probe, o) not in COLLECTIVE_PHASES):
        yield replace(found, message=found.message + lazily(probe))


@rule("PROBE006", "rank-died-after-init", Severity.ERROR)
def after_init(probe: Probe) -> Iterator[Finding]:
    """A rank ended, or failed with an error of its own, after the process group was formed.

    ## Why it matters
    With Gloo the peers print `Connection closed by peer` with an address within a second, with NCCL they wait for the
    watchdog; launchers then call each survivor the root cause.

    ## Fix
    Read that rank's own output before the messages of its peers.
    """
    yield from observed(o for o in probe.seen(*ENDED) if _phase(probe, o) in COLLECTIVE_PHASES)


@rule("PROBE007", "rank-stopped", Severity.ERROR)
def stopped(probe: Probe) -> Iterator[Finding]:
    """A rank's process exists but is stopped.

    ## Why it matters
    SIGSTOP, a debugger, a frozen container or cgroup: the process answers nobody and does not end either. The others
    hang in their collective, and after the timeout each survivor looks like the culprit.

    ## Fix
    Continue the process (kill -CONT PID) or end it; `grep State /proc/PID/status` shows T while it is stopped.
    """
    yield from observed(probe.seen(Kind.STOPPED), expected="state R or S")


@rule("PROBE008", "rank-behind", Severity.WARNING)
def behind(probe: Probe) -> Iterator[Finding]:
    """One rank was ready, or reached a collective, much later than all the others.

    ## Why it matters
    Not a deadlock, but all others wait for it; with a short timeout they fail with `Timed out waiting …ms` and blame
    each other.

    ## Fix
    Find out what slows that rank's node: a cold file system cache, a busy disk, other work on its cores.
    """
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


def _late(report: RankReport, words: str, path: str, seconds: float) -> Finding:
    return Finding(
        f"rank {report.rank} on {report.host} {words}",
        (Evidence(f"probe.ranks.{path}", f"{seconds:.1f}", "about as long as on the other ranks"),),
        where=Where(report.host, report.node_rank, report.rank, report.local_rank),
        ranks=(report.rank,),
    )


@rule("PROBE009", "rank-stuck-elsewhere", Severity.ERROR)
def elsewhere(probe: Probe) -> Iterator[Finding]:
    """One rank is busy or waits in other code while the others wait for it in a collective.

    ## Why it matters
    It waits for data, a file, a lock or a computation and prints nothing; the ranks that reached the collective are the
    ones that time out, with `Timed out waiting …ms for recv operation to complete`.

    ## Fix
    Look at the line that the finding names, on that rank; the stacks of the ranks that timed out say nothing.
    """
    yield from observed(probe.seen(Kind.ELSEWHERE, Kind.UNINTERRUPTIBLE), expected="in the collective with the others")


@rule("PROBE017", "collective-value-wrong", Severity.ERROR, signatures=(r"Out of bounds values : \d+ FAILED",))
def wrong_value(probe: Probe) -> Iterator[Finding]:
    """A collective finished without an error and returned wrong numbers.

    ## Why it matters
    Nothing reports it: the training runs and diverges. PCIe access control or an IOMMU between GPUs, a forced
    NCCL_PROTO=LL128 and sick hardware do this.

    ## Fix
    Repeat the probe with NCCL_P2P_DISABLE=1, then with another NCCL_PROTO, to find the path; take the GPU out.
    """
    found = probe.seen(Kind.WRONG_VALUE)
    due = next((o.expected for o in found if o.expected), "")
    if (
        2 < probe.world_size == len({rank for o in found for rank in o.ranks})
    ):  # one puts them in, and nobody knows which
        found = (replace(found[0], ranks=(), host=None, node_rank=None, local_rank=None),)
    yield from observed(found, expected=due)


@rule("PROBE504", "collective-differs", Severity.ERROR)
def differs(probe: Probe) -> Iterator[Finding]:
    """One rank calls another collective than the others, or the same one with another shape or dtype.

    ## Why it matters
    Gloo aborts with `op.preamble.length <= op.nbytes`, on either side, or returns without an error and hangs in the next
    collective; NCCL hangs or returns garbage. Nothing names the rank that differs.

    ## Fix
    Something replaces functions of torch.distributed on that rank: look for a sitecustomize, a plugin or another version of a
    package there. In a job of your own, TORCH_DISTRIBUTED_DEBUG=DETAIL prints both calls.
    """
    found = probe.seen(Kind.MISMATCH)
    yield from observed(found, expected=next((o.expected for o in found if o.expected), ""))
