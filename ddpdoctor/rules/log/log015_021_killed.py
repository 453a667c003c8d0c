"""LOG015, LOG021: processes that were ended from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity, Speaker
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.ended_ranks import SIGKILL, ended
from ddpdoctor.rules.log.signatures import finding_of, retitled, signed
from ddpdoctor.rules.log.watchdog_timeouts import WATCHDOGS

SIGKILLED = (
    r"exitcode\s*: -9\b",
    r"return code = -9\b",
    r"Signal 9 \(SIGKILL\)",
    r"died with <Signals\.SIGKILL: 9>",
    r"exited on signal 9 \(Killed\)",
    r"terminated with signal SIGKILL",
    r"THE EXIT STRING: Killed ",
    r"task \d+: Killed\b",
    r"line \d+: +\d+ Killed\b",
    r"(^|\])Killed$",
    r"KILLED BY SIGNAL: 9 ",
    r"\bexited with code 137\b",
    r"\bExit Code: +137\b",
)


TERMINATED = "Terminated"
"""What a shell prints about a program that SIGTERM ended."""
ENDED_BY_SIGTERM = "the job was ended from outside with SIGTERM"
WHO_SENT_IT = (
    "Either the scheduler sent it (time limit, preemption, scancel), a `timeout` command in the job script did, or a person did: "
    "run `sacct -j JOB --format=JobID,State,ExitCode,Elapsed,Timelimit` to decide"
)
FIND_SENDER = (
    "Run sacct -j JOB --format=JobID,State,ExitCode,Elapsed,Timelimit, and search the job script for timeout commands"
)


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a scheduler ended a job, in the words of its line."""

    words: re.Pattern[str]
    title: str
    fix: str


_REASONS = (
    _Reason(
        re.compile(r"DUE TO TIME|TERM_RUNLIMIT|time limit|job killed: walltime|DeadlineExceeded"),
        "The job reached its time limit",
        "Request more time (`sbatch --time`, `qsub -l walltime`, activeDeadlineSeconds), or save a checkpoint before the limit "
        "(`sbatch --signal=B:USR1@120`) and requeue with a new rendezvous id.",
    ),
    _Reason(
        re.compile(r"PREEMPT|[Pp]reempt|terminated soon"),
        "The scheduler preempted the job",
        "Save a checkpoint on SIGUSR1 or SIGTERM (`sbatch --signal=B:USR1@120`), and requeue with a new rendezvous id.",
    ),
    _Reason(
        re.compile(
            r"DUE TO NODE|Node failure|NodeNotReady|TaintManager|not ready|marked dead|node has (?:died|crashed)"
        ),
        "The node of the job failed",
        "Exclude that node (`sbatch --exclude`, `kubectl cordon`), report it, and start the job from its last checkpoint.",
    ),
    _Reason(
        re.compile(r"low on resource|node had condition"),
        "The pod was evicted: its node ran out of a resource",
        "Request the memory or ephemeral-storage that the pod uses (resources.requests), and write checkpoints to a volume.",
    ),
)
"""Reasons that the scheduler's line gives; without one, only that it ended the job is known."""


@cause(
    "LOG015",
    "scheduler-ended-job",
    Severity.ERROR,
    stage=CausalStage.TERMINATED,
    speaker=Speaker.SCHEDULER,
    signatures=(
        r"CANCELLED AT [^\n]{0,300} DUE TO [A-Z]",
        r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED",
        r"got signal: 15\b",
        r"this job is preempted",
        r"Received (15|Signals\.SIGTERM|SIGTERM) death signal",
        r"(^|\])Terminated$",
        r"PBS: job killed: |user-provided time limit for job execution has been reached",
        r"TERM_(RUNLIMIT|PREEMPT|OWNER|MEMLIMIT)",
        r"node was low on resource: |The node had condition: \[",
        r"Stopping container |\bPreempting pod|\bEvicted\b.{0,40}pod|DeadlineExceeded",
        r"has been marked dead because the detector has missed|[Tt]he actor died because its node has died",
        r"Owner's node has crashed",
        r"srun: error: Node failure on ",
        r"will be terminated soon \(reason: ",
        r"status is now: NodeNotReady|\bTaintManagerEviction\b|[Nn]ode is not ready.{0,40}[Ee]vict",
    ),
)
def scheduler_ended_job(log: Log) -> Iterator[Finding]:
    """The scheduler ended the job or lost its node.

    ## Why it matters
    slurmstepd prints one line, often only in the error file (`CANCELLED AT … DUE TO TIME LIMIT`). Then every rank prints a
    traceback that ends in SignalException `got signal: 15`: hundreds of lines that look like a crash of the script.

    ## Fix
    After a time limit, request more time (`sbatch --time`); after a node failure, exclude that node (`sbatch --exclude`). Save
    a checkpoint on SIGUSR1 or SIGTERM (`sbatch --signal=B:USR1@120`), and requeue with a new rendezvous id. For an evicted pod,
    request the memory or ephemeral-storage that it uses (resources.requests).

    ## Example

        slurmstepd: error: *** JOB 4712 ON gpu-07 CANCELLED AT 2026-03-01T02:10:00 DUE TO TIME LIMIT ***

        # before
        sbatch --time=01:00:00 job.sbatch
        # after
        sbatch --time=08:00:00 --signal=B:USR1@120 job.sbatch
    """
    lines = matching_lines(log, scheduler_ended_job.rule.signatures)
    if lines and all(line.text == TERMINATED for line in lines):
        found = finding_of(log, lines, ENDED_BY_SIGTERM, WHO_SENT_IT, blames_speaker=True)
        if found.role is None:
            yield replace(found, fix=FIND_SENDER)
        return
    for found in signed(scheduler_ended_job, log):
        shown = "\n".join((found.quote, *(evidence.seen for evidence in found.evidence)))
        reason = next((each for each in _REASONS if each.words.search(shown)), None)
        yield found if reason is None else retitled(replace(found, fix=reason.fix), reason.title)


@cause(
    "LOG021",
    "worker-killed-by-sigkill",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    kind="umbrella",
    candidates=("LOG014", "HOST009", "LOG015"),
    signatures=SIGKILLED,
)
def worker_killed_by_sigkill(log: Log) -> Iterator[Finding]:
    """A worker was killed from outside with SIGKILL.

    ## Why it matters
    The worker ends with exit code -9 and without a traceback. The OOM killer, a cgroup limit of Slurm, Docker, or Kubernetes, the
    launcher after its grace period, or a person with kill -9 ended it; the process itself could not print the reason.

    ## Fix
    Run `sudo dmesg -T | grep -iE "killed process|oom"` on the host of that worker and compare the time. Also read the scheduler's
    record (`sacct -j JOB --format=State,ExitCode,MaxRSS`, or `kubectl describe pod POD` for OOMKilled).

    ## Example

        exitcode  : -9 (pid: 4312)

        # before
        #SBATCH --mem=64G
        # after, if the kernel log shows the OOM killer
        #SBATCH --mem=256G
    """
    killed = [exit_ for exit_ in history_of(log).failed_exits if exit_.code == SIGKILL]
    lines = matching_lines(log, SIGKILLED)
    if killed:
        yield ended(log, killed, "killed from outside with SIGKILL (exit code -9), no traceback")
    elif lines and not (matching_lines(log, WATCHDOGS) and all(line.text == "Killed" for line in lines)):
        yield finding_of(log, lines, "killed from outside with SIGKILL", blames_speaker=True)
