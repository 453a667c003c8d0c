"""HOST012, HOST013: nodes whose clocks or files differ, as logs show it."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule("HOST012", "clock-skew", Severity.ERROR, signatures=(r"since they had no heartbeat",))
def clock_skew() -> None:
    """torchrun dropped a node from the rendezvous because its heartbeat looked old.

    ## Why it matters
    "the node(s) 'node-1_4711_0' have been removed from the rendezvous 'job1' since they had no heartbeat": heartbeats are
    compared by wall clock. A node whose clock is more than 15 s behind looks dead to the others, and no message says so.

    ## Fix
    Compare the clocks (date +%s.%N on all nodes at once, chronyc tracking) and start chrony or ntpd. With equal clocks the
    node really stopped: read its own log.
    """


@rule("HOST013", "file-system-not-shared", Severity.ERROR)
def file_system_not_shared() -> None:
    """A path exists on some nodes only.

    ## Why it matters
    FileNotFoundError on the ranks of one node for a path that others read without trouble: a disk of the node, or a layer of
    its container, where everybody took it for the shared file system.

    ## Fix
    ls -l the path on every node (srun --ntasks-per-node=1 ls -l PATH); put the file on the shared file system, or copy it to
    every node before the launch.
    """
