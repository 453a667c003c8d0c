"""HOST012, HOST013, HOST502: clocks, files, and other properties that differ between the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.comparable_properties import PROPERTY_WORDS
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.nodes import Form, Nodes, Split, split
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import about, differs, named

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["clock_skew", "file_system_not_shared", "nodes_differ"]

DROPPED_SECONDS = 15.0
"""torchrun's c10d drops a node whose last heartbeat looks older: three of 5 s."""
SKEW_SECONDS = 5.0

OTHERS_JUDGE = (
    "versions.torch",
    "versions.build",
    "versions.nccl",
    "gpu.driver",
    "gpu.model",
    "gpu.memory",
    "gpu.count",
)
NOTED = (
    "host.kernel",
    "versions.numpy",
    "net.rdma_firmware",
    "host.huge_pages",
    "host.container",
    "gpu.persistence",
    "gpu.application_clock",
    "host.swap",
    "host.governor",
)
"""Differences that rarely matter: reported as notes."""
NEARLY_EQUAL = ("host.memory", "host.shm")
"""Sizes that differ a little between machines of one kind."""
SHARE = 0.05


@cause("HOST012", "clock-skew", Severity.ERROR, signatures=(r"since they had no heartbeat",))
def clock_skew(nodes: Nodes) -> Iterator[Finding]:
    """The clocks of the nodes differ.

    ## Why it matters
    torchrun compares heartbeats by wall clock: a node more than 15 s behind looks dead to the others, and the only
    message is `the node(s) 'node-1_4711_0' have been removed from the rendezvous 'job1' since they had no
    heartbeat`. Log lines of several nodes are also in the wrong order.

    ## Fix
    Compare the clocks (`date +%s.%N` on all nodes at once, `chronyc tracking`) and start chrony or ntpd on every
    node. If the clocks are equal, the node really stopped: read its own log.

    ## Example

        the node(s) 'node-1_4711_0' have been removed from the rendezvous 'job1' since they had no heartbeat

        # before, on node-1: 40 s behind
        date
        # after, on node-1
        systemctl enable --now chronyd && chronyc makestep
    """
    known = [(node, node.clock_seconds) for node in nodes.nodes if node.clock_seconds is not None]
    if len(known) < 1 or len(nodes.nodes) < 2:
        not_here("the clocks of fewer than two nodes are known")
    offsets = sorted([0.0, *(seconds for _, seconds in known)])  # 0.0 is the node that hosted the check
    middle = offsets[len(offsets) // 2]
    wrong = [(node, seconds - middle) for node, seconds in known if abs(seconds - middle) > SKEW_SECONDS]
    host = nodes.nodes[nodes.hosted_by]
    if abs(middle) > SKEW_SECONDS:
        wrong.append((host, -middle))
    if not wrong:
        return
    worst = max(abs(seconds) for _, seconds in wrong)
    shown = ", ".join(f"{node.title} is {abs(s):.0f} s {'ahead' if s > 0 else 'behind'}" for node, s in wrong[:6])
    is_fatal = worst > DROPPED_SECONDS and nodes.form == Form.C10D
    yield about(
        [node for node, _ in wrong],
        f"the clock of {shown}",
        "nodes.clock_seconds",
        f"{worst:.1f}",
        f"below {SKEW_SECONDS:.0f}",
        severity=None if is_fatal else Severity.WARNING,
        is_blamed=len(nodes.nodes) > 2,
    )


@cause("HOST013", "file-system-not-shared", Severity.ERROR, stage=CausalStage.DEATH, explains=("LAUNCH003",))
def file_system_not_shared(nodes: Nodes) -> Iterator[Finding]:
    """A path exists on some nodes only.

    ## Why it matters
    The ranks of one node fail with `FileNotFoundError` for a path that the others read: it is on that node's own
    disk, or in a layer of its container, not on the shared file system.

    ## Fix
    Put the file on the shared file system, or copy it to every node before the launch. To list it on every node, run
    `srun --ntasks-per-node=1 ls -l PATH` under Slurm, or `kubectl exec POD -- ls -l PATH`.

    ## Example

        FileNotFoundError: [Errno 2] No such file or directory: '/data/train.py'

        # before: /data is a local disk
        torchrun … /data/train.py
        # after
        torchrun … /shared/project/train.py
    """
    absent = [node for node in nodes.nodes if node.script_hash == ""]
    absent_scripts = {node.script for node in absent}
    present = [node for node in nodes.nodes if node.script_hash and node.script in absent_scripts]
    if absent and present:
        yield about(
            absent,
            f"{absent[0].script} does not exist on {named(absent)}, but on {named(present)}",
            "nodes.script_hash",
            "no such file",
            "the same file everywhere",
        )


@cause("HOST502", "nodes-differ", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def nodes_differ(nodes: Nodes) -> Iterator[Finding]:
    """The nodes differ in a property that is usually the same on all of them.

    ## Why it matters
    A node that was set up differently is the first suspect if one node is slow or fails alone. Most such
    differences are harmless by themselves.

    ## Fix
    Examine the node that differs from the majority first; give all nodes the same image and the same limits.

    ## Example

        the number of usable CPUs differs between nodes (node0, node2: 64; node1: 32)

        # before, on node1: a smaller allocation
        #SBATCH --cpus-per-task=32
        # after, on every node
        #SBATCH --cpus-per-task=64
    """
    names = sorted({name for node in nodes.nodes for name in node.traits if not name.startswith("environ.")})
    for name in names:
        if name in OTHERS_JUDGE or name == "topo.fabric":
            continue
        groups = split(nodes.nodes, lambda node, name=name: node.traits.get(name))  # type: ignore[misc]
        if groups is None or (name in NEARLY_EQUAL and _nearly(groups)):
            continue
        is_note = name in NOTED or nodes.is_meeting
        yield differs(groups, PROPERTY_WORDS.get(name, name), name, severity=Severity.NOTE if is_note else None)


def _nearly(groups: Split) -> bool:
    """Whether the sizes are within a few percent of each other."""
    sizes = [_number(value) for value, _ in groups.groups]
    known = [size for size in sizes if size is not None]
    return len(known) == len(sizes) and max(known) - min(known) <= SHARE * max(known)


def _number(value: str) -> float | None:
    try:
        return float(value.partition(" ")[0])
    except ValueError:
        return None


@file_system_not_shared.look
def on_some_nodes_only(log: Log) -> Iterator[Finding]:
    """All ranks of some nodes miss a path, and no rank of another node does."""
    from ddpdoctor.rules.log.missing_files import missing_file_finding

    yield from missing_file_finding(log, of_nodes=True)
