"""HOST510 and HOST511: what the scheduler says about this node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host, SchedulerNode
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

DOWN = re.compile(r"DOWN|FAIL|NOT_RESPONDING|NotReady|\*", re.ASCII)
CLOSED = re.compile(r"DRAIN|MAINT|REBOOT|INVAL", re.ASCII)


def _node(host: Host) -> SchedulerNode:
    if host.scheduler is None and host.gap("scheduler") is None:
        not_here("no scheduler's record of this node was given")
    return host.need(host.scheduler, "scheduler")


@cause("HOST510", "node-out-of-service", Severity.ERROR)
def node_out_of_service(host: Host) -> Iterator[Finding]:
    """The scheduler has marked this node as down, drained, or not ready.

    ## Why it matters
    No new job starts on it, and a job that needs it waits: `srun` prints `Required node not available (down, drained
    or reserved)`, and `kubectl describe pod` shows `node(s) were unschedulable` or `node(s) had untolerated taint`.

    ## Fix
    Read the reason, repair what it names, and return the node with `scontrol update nodename=NODE state=resume` or
    `kubectl uncordon NODE`.

    ## Example

        State=IDLE+DRAIN ... Reason=NHC: check_gpu: GPU count 7, expected 8

        scontrol update nodename=gpu-07 state=resume
    """
    node = _node(host)
    state = node.state or ""
    reason = f": {node.reason}" if node.reason else ""
    is_down = DOWN.search(state) is not None
    if is_down or CLOSED.search(state) is not None:
        yield Finding(
            f"the scheduler has this node in state {state}{reason}",
            (Evidence("host.scheduler.state", state, "IDLE, MIXED, ALLOCATED or Ready"),),
            severity=None if is_down else Severity.WARNING,
        )
    elif node.is_unschedulable:
        yield Finding(
            "the node is cordoned: no new pod is scheduled on it",
            (Evidence("host.scheduler.is_unschedulable", "true", "false"),),
            fix_command="kubectl uncordon NODE",
            severity=Severity.WARNING,
        )
    elif node.reason:
        yield Finding(
            f"the node has a condition that is not normal{reason}",
            (Evidence("host.scheduler.reason", node.reason, "none"),),
            severity=Severity.WARNING,
        )


@cause("HOST511", "node-gpus-not-allocatable", Severity.ERROR)
def node_gpus_not_allocatable(host: Host) -> Iterator[Finding]:
    """The node offers fewer GPUs to pods than it has.

    ## Why it matters
    NVIDIA's device plugin withdraws a GPU that had a critical Xid. A pod that requests all GPUs of the node stays pending with
    `Insufficient nvidia.com/gpu`.

    ## Fix
    Look for `Xid` in the kernel log of the node to find the GPU, reset it or reboot the node, and restart the device plugin.

    ## Example

        Capacity:     nvidia.com/gpu:  8
        Allocatable:  nvidia.com/gpu:  7

        kubectl debug node/gpu-07 -it --profile=sysadmin --image=ubuntu -- sh -c 'dmesg | grep Xid'
    """
    node = _node(host)
    if node.gpus is None or node.gpus_usable is None:
        not_here("the scheduler does not show how many GPUs it can give to jobs")
    if node.gpus_usable < node.gpus:
        yield Finding(
            f"the node has {node.gpus} GPUs, but only {node.gpus_usable} can be given to pods",
            (Evidence("host.scheduler.gpus_usable", str(node.gpus_usable), str(node.gpus)),),
            fix_command="dmesg | grep -i xid",
        )
