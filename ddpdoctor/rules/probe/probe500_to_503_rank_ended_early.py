"""PROBE500 to PROBE503: a rank that could not place itself, was told to end, or lost the store; a host that is gone."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.observation_findings import observed


@cause("PROBE500", "rank-environment-unusable", Severity.ERROR, kind="umbrella")
def rank_environment_unusable(probe: Probe) -> Iterator[Finding]:
    """The variables that place a rank are missing or no numbers.

    ## Why it matters
    torch names only the first missing one (`environment variable RANK expected, but not set`) or none at all (`invalid
    literal for int() with base 10`), on that rank; all others wait for it.

    ## Fix
    Take RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the launcher, in every process.
    """
    yield from observed(probe.seen(Kind.BAD_ENVIRONMENT), expected="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT")


@cause("PROBE501", "rank-terminated", Severity.ERROR, stage=CausalStage.TERMINATED, kind="umbrella")
def rank_terminated(probe: Probe) -> Iterator[Finding]:
    """A rank was told to end from outside, and nothing else was seen to be wrong.

    ## Why it matters
    The launcher or the scheduler ended it (`Sending process … closing signal SIGTERM`): a time limit, a preemption, a
    person, or a failure on another node that could not be seen from here.

    ## Fix
    Look at the launcher's own output and at the other nodes for what came first.
    """
    if any(o.kind is not Kind.TERMINATED for o in probe.observations):
        return
    yield from observed(probe.seen(Kind.TERMINATED))


@cause("PROBE502", "store-lost", Severity.ERROR, stage=CausalStage.STORE_LOST, kind="umbrella")
def store_lost(probe: Probe) -> Iterator[Finding]:
    """The store of the job answered at first and then no more.

    ## Why it matters
    The process that hosts it ended or was stopped, or the network to it was cut; ranks print `Failed to recv, got 0
    bytes. Connection was likely closed.` and look guilty themselves.

    ## Fix
    Look at the node of the master address: is the launcher (or rank 0) still running there, and not stopped?
    """
    yield from observed(probe.seen(Kind.STORE_LOST), expected="answers within milliseconds")


@cause("PROBE503", "host-lost", Severity.ERROR)
def host_lost(probe: Probe) -> Iterator[Finding]:
    """A host of the job cannot be reached any more.

    ## Why it matters
    It lost its power, crashed, or its network was cut. Nothing closes the connections to it, so the other ranks wait in
    their collective until the timeout and then blame each other.

    ## Fix
    Look whether the host answers a ping, and at its console or its scheduler's node state; take it out of the job.
    """
    yield from observed(probe.seen(Kind.HOST_LOST), expected="a sign of life twice a second")
