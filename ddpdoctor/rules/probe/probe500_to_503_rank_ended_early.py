"""PROBE500 to PROBE503: a rank with unusable variables, that was terminated, or that lost the store; a host that
was lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.observation_findings import observed


@cause("PROBE500", "rank-environment-unusable", Severity.ERROR, kind="umbrella")
def rank_environment_unusable(probe: Probe) -> Iterator[Finding]:
    """The variables that a rank needs are missing or are not numbers.

    ## Why it matters
    torch names only the first missing one (`environment variable RANK expected, but not set`) or none at all
    (`invalid literal for int() with base 10`), on that rank only. All others wait for it.

    ## Fix
    Take RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT from the launcher, in every process.

    ## Example

        ValueError: invalid literal for int() with base 10: 'zero'

        # before
        RANK=zero WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py
        # after
        RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py
    """
    yield from observed(probe.seen(Kind.BAD_ENVIRONMENT), expected="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT")


@cause("PROBE501", "rank-terminated", Severity.ERROR, stage=CausalStage.TERMINATED, kind="umbrella")
def rank_terminated(probe: Probe) -> Iterator[Finding]:
    """A rank was terminated from outside, and no other fault was observed.

    ## Why it matters
    The launcher or the scheduler ended it (`Sending process … closing signal SIGTERM`): a time limit, a preemption,
    a person, or a failure on another node that is not visible from here.

    ## Fix
    Look at the launcher's own output and at the other nodes for the first error.

    ## Example

        Sending process 4711 closing signal SIGTERM

        # before: the probe runs into the job's time limit
        #SBATCH --time=00:01:00
        # after
        #SBATCH --time=01:00:00
    """
    if any(o.kind is not Kind.TERMINATED for o in probe.observations):
        return
    yield from observed(probe.seen(Kind.TERMINATED))


@cause("PROBE502", "store-lost", Severity.ERROR, stage=CausalStage.STORE_LOST, kind="umbrella")
def store_lost(probe: Probe) -> Iterator[Finding]:
    """The store of the job answered at first and then stopped answering.

    ## Why it matters
    The process that hosts it ended or was stopped, or the network to it failed. Ranks print `Failed to recv, got 0
    bytes. Connection was likely closed.` and look like the cause themselves.

    ## Fix
    Check on the node of the master address that the launcher (or rank 0) is still running and not stopped.

    ## Example

        Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?

        # before, on node0: the agent is stopped (T), or not in the list because it ended
        ps -eo pid,stat,args | grep torchrun
        # after, on node0
        kill -CONT PID
    """
    yield from observed(probe.seen(Kind.STORE_LOST), expected="answers within milliseconds")


@cause("PROBE503", "host-lost", Severity.ERROR)
def host_lost(probe: Probe) -> Iterator[Finding]:
    """A host of the job is no longer reachable.

    ## Why it matters
    It lost power, crashed, or lost its network. Nothing closes the connections to it, so the other ranks wait in their
    collective until `Timed out waiting …ms` and then look like the cause themselves.

    ## Fix
    Check that the host answers `ping`, and look at its console or its state in the scheduler; take it out of the
    job.

    ## Example

        node1 is no longer reachable

        # before, with Slurm
        sbatch job.sh
        # after: without node1
        sbatch --exclude=node1 job.sh
    """
    yield from observed(probe.seen(Kind.HOST_LOST), expected="a heartbeat twice per second")
