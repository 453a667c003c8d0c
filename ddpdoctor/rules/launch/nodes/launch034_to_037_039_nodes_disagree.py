"""LAUNCH034 to 037, 039: the lines of one job, one per node, compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ddpdoctor.facts.job import Agent, Job
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit, quote
from ddpdoctor.facts.nodes import Form, Node, Nodes, split
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.jobs import jobs_of_launch
from ddpdoctor.launch.rendezvous import ACCELERATE_NAMES
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.nodes.same_rank import same_for_all
from ddpdoctor.rules.launch.pointing import after, correcting, revalue, spelled, where
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of
from ddpdoctor.rules.node_findings import differs, only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["differing"]

T = TypeVar("T", str, int)


def differing(
    launch: Launch,
    nodes: Sequence[Agent],
    value: Callable[[Agent], T | None],
    option: str,
    name: str,
    severity: Severity | None = None,
) -> Iterator[Finding]:
    """One finding if the nodes' values differ: it is about the minority; on a tie it names both sides.

    Args:
        value: the value of a node, None if it is not known.
        option: the option that holds it, for the corrected line.
        name: how the message calls it.
    """
    known = [(node, v) for node in nodes if (v := value(node)) is not None]
    counts = Counter(v for _, v in known)
    if len(counts) < 2:
        return
    (common, most), (_, second) = counts.most_common(2)
    values = [f"{each!s:.30} on {_names([n for n, v in known if v == each])}" for each in counts]
    minority = [n for n, v in known if v != common]
    is_tie = most == second
    only = minority[0] if len(minority) == 1 and not is_tie else None
    target = minority[0]
    finding = Finding(
        f"{name} differs: {', '.join(values[:4])}{', …' if len(values) > 4 else ''}",
        tuple(Evidence(f"launch.lines[{n.line.node}]", str(v), str(common)) for n, v in known[:16]),
        where=_place(only) if only is not None else Where(),
        severity=severity,
        label=f"use {common!s:.30}" if only is not None else "",
    )
    yield correcting(finding, launch, (target.line, _agreeing(launch, target, option, str(common))))


def _names(nodes: list[Agent]) -> str:
    """Lines by their node's number; the nodes of a running check by their host names."""
    hosts = [n.line.host for n in nodes if n.line.host and not any(layer.name == "ssh" for layer in n.line.layers)]
    if len(hosts) == len(nodes):
        return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    indices = [str(n.line.node) for n in nodes]
    shown = ", ".join(indices[:8]) + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")
    return f"node{'s' if len(indices) > 1 else ''} {shown}"


def _place(node: Agent) -> Where:
    return where(node.line, node.layer.program)


def _agreeing(launch: Launch, node: Agent, option: str, value: str) -> list[SpanEdit]:
    """The edits that set an option of a node to this value; none if it is a part of another option."""
    name = ACCELERATE_NAMES.get(option, option) if node.layer.launcher is LauncherKind.ACCELERATE else option
    given = node.layer.given(name)
    if option in ("master_addr", "master_port") and node.plan.settings["rdzv_endpoint"].value:
        return []  # it is a part of the endpoint
    if given is not None:
        return [revalue(given, quote(value))]
    last = node.layer.own[-1]
    return [after(last, f"{spelled(node.layer, name, launch.version)}={quote(value)}")]


@cause(
    "LAUNCH034",
    "rdzv-backend-differs",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    explains=("LAUNCH039",),
    repairs=("address", "same-value"),
)
def rdzv_backend_differs(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The nodes use different rendezvous backends.

    ## Why it matters
    static and c10d use different keys in the store, so each side waits 10 to 30 minutes for keys that the other never
    writes. Ranks started by hand cannot join those of torchrun either.

    ## Fix
    Use the same `--rdzv-backend` on every node.

    ## Example
        error[LAUNCH034]: --rdzv-backend differs: c10d on node 0, static on node 1

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
        torchrun --nnodes=2 --node-rank=1 --rdzv-backend=static --rdzv-endpoint=HOST0:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    if nodes is not None and any(node.form == Form.ENV for node in nodes.nodes):
        forms = split(nodes.nodes, lambda node: str(node.form))
        if forms is not None:
            fix = "Start all nodes with torchrun, or all ranks by hand."
            yield differs(forms, "the rendezvous method", "form", fix=fix)
    if only_met(nodes, launch):
        return
    assert launch is not None
    assert job is not None
    lines = [n for n in job.nodes if n.plan.is_standalone is False and not n.plan.is_rewritten]
    yield from differing(launch, lines, lambda n: n.plan.backend, "rdzv_backend", "--rdzv-backend")


@cause(
    "LAUNCH035",
    "nnodes-differs",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    explains=("LAUNCH038",),
    repairs=("node-count",),
)
def nnodes_differs(launch: Launch, job: Job) -> Iterator[Finding]:
    """--nnodes differs between the nodes.

    ## Why it matters
    With static rendezvous only the value of node rank 0 counts: if another node has a larger one, the job hangs at
    its end; if node rank 0 has a larger one, it waits for a node that does not exist. With c10d the nodes wait
    forever.

    ## Fix
    Use the same `--nnodes` on every node.

    ## Example
        error[LAUNCH035]: --nnodes differs: 2 on node 0, 3 on node 1

        # before
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
        torchrun --nnodes=3 --node-rank=1 --master-addr=HOST0 train.py

        # after
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
    """
    nodes = job.nodes
    if nodes and all(n.plan.nnodes == (1, 1) for n in nodes):
        return
    followers = [n for n in nodes if _follows(n)]
    rest = [n for n in nodes if n not in followers]
    yield from differing(launch, rest, _nnodes, "nnodes", "--nnodes")
    if followers and rest and not list(differing(launch, rest, _nnodes, "nnodes", "--nnodes")):
        yield from differing(launch, nodes, _nnodes, "nnodes", "--nnodes", Severity.WARNING)


def _follows(node: Agent) -> bool:
    """A static node above rank 0 without --nnodes: it uses the number of node rank 0, by chance."""
    plan = node.plan
    return plan.backend == "static" and not plan.given("nnodes") and (plan.node_rank or 0) > 0


def _nnodes(node: Agent) -> str | None:
    if node.plan.nnodes is None:
        return None
    low, high = node.plan.nnodes[0], node.plan.nnodes[-1]
    return str(high) if low == high else f"{low}:{high}"


def _static(job: Job) -> list[Agent]:
    return [n for n in job.nodes if n.plan.backend == "static"]


@cause(
    "LAUNCH036",
    "duplicate-node-rank",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    explains=("NET001",),
    repairs=("escape", "node-rank", "wrap"),
)
def duplicate_node_rank(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """Two nodes have the same --node-rank.

    ## Why it matters
    Two nodes of rank 0 on different machines both open a store and wait 15 minutes without an error; on one machine
    the second fails with `EADDRINUSE`. If a rank above 0 is used twice, another rank is missing.

    ## Fix
    Give every node its own `--node-rank` from 0.

    Or use c10d, which needs none.

    ## Example
        error[LAUNCH036]: 2 nodes have --node-rank=0 (nodes 0, 1)

        # before
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py

        # after
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
    """
    if nodes is not None:
        yield from _claimed_twice(nodes)
    if only_met(nodes, launch):
        return
    assert launch is not None
    assert job is not None
    for each in jobs_of_launch(launch):
        yield from same_for_all(launch, each)
    lines = _static(job)
    settings = ("node_rank", "master_addr", "rdzv_endpoint")
    if not any(n.plan.given(name) for n in lines for name in settings):
        return
    if all(n.plan.nnodes == (1, 1) for n in lines) and not any(n.plan.given("node_rank") for n in lines):
        return  # each is rank 0 of a world of its own: LAUNCH070
    ranks = Counter(n.plan.node_rank for n in lines if n.plan.node_rank is not None)
    free = iter(r for r in range(len(lines)) if r not in ranks)
    for rank, count in ranks.items():
        if count > 1:
            same = [n for n in lines if n.plan.node_rank == rank]
            is_second = count == 2 and rank > 0
            finding = Finding(
                f"{count} nodes have --node-rank={rank} ({_names(same)})",
                tuple(Evidence(f"launch.lines[{n.line.node}]", str(rank), "a rank of its own") for n in same[:16]),
                where=_place(same[1]) if is_second else Where(),
                label="use another rank" if is_second else "",
            )
            edits = _agreeing(launch, same[1], "node_rank", str(next(free, rank)))
            yield correcting(finding, launch, (same[1].line, edits))


def _claimed_twice(nodes: Nodes) -> Iterator[Finding]:
    """Nodes with the same rank whose lines are not known here or set it in another way."""
    groups: dict[int, list[Node]] = {}
    for node in nodes.nodes:
        if node.form == Form.STATIC and node.node_rank is not None:
            groups.setdefault(node.node_rank, []).append(node)
    for rank, same in groups.items():
        if len(same) > 1 and not (same[0].is_scheduled and len({node.machine for node in same}) == 1):
            hosts = ", ".join(node.host for node in same[:8])
            yield Finding(
                f"{len(same)} nodes have --node-rank={rank} ({hosts})",
                (Evidence("nodes.node_rank", f"{rank} on {hosts}", "each rank once"),),
                where=Where(node_rank=rank),
            )


@cause(
    "LAUNCH037",
    "node-rank-zero-missing",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    repairs=("escape", "node-rank", "wrap"),
)
def node_rank_zero_missing(launch: Launch, job: Job) -> Iterator[Finding]:
    """No node of the job has --node-rank 0.

    ## Why it matters
    No node opens the store: all nodes are clients and wait up to 30 minutes without a message. Usually the ranks were
    counted from 1.

    ## Fix
    Number the nodes from 0.

    ## Example
        error[LAUNCH037]: no node has --node-rank=0 (ranks: 1, 2)

        # before
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
        torchrun --nnodes=2 --node-rank=2 --master-addr=HOST0 train.py

        # after
        torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
    """
    nodes = _static(job)
    ranks = [n.plan.node_rank for n in nodes]
    if not nodes or len(nodes) < len(launch.nodes) or None in ranks or 0 in ranks:
        return
    if nodes[0].plan.nnodes is not None and len(nodes) < nodes[0].plan.nnodes[-1] and min(r or 0 for r in ranks) > 0:
        numbered = sorted(r or 0 for r in ranks)
        if (
            numbered == list(range(numbered[0], numbered[0] + len(numbered)))
            and numbered[-1] < nodes[0].plan.nnodes[-1]
        ):
            return  # lines of other nodes are missing: one of them may have rank 0
    finding = Finding(
        f"no node has --node-rank=0 (ranks: {', '.join(str(r) for r in ranks[:8])}{', …' if len(ranks) > 8 else ''})",
        tuple(
            Evidence(f"launch.lines[{n.line.node}]", str(n.plan.node_rank), str(i)) for i, n in enumerate(nodes[:16])
        ),
    )
    fixed = [(n.line, _agreeing(launch, n, "node_rank", str(i))) for i, n in enumerate(nodes)]
    yield correcting(finding, launch, *fixed) if len(fixed) <= 8 else finding


@cause("LAUNCH039", "rdzv-id-differs", Severity.ERROR, scope=CauseScope.LINES_OF_NODES, repairs=("same-value",))
def rdzv_id_differs(launch: Launch, job: Job) -> Iterator[Finding]:
    """--rdzv-id differs between the nodes.

    ## Why it matters
    Nodes with different ids do not see each other's keys, with c10d and static rendezvous alike: all wait for 10 to
    30 minutes. `$RANDOM` and the time of day differ on every node.

    ## Fix
    Use the same `--rdzv-id` on every node.

    ## Example
        error[LAUNCH039]: --rdzv-id differs: 1 on node 0, 2 on node 1

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-id=1 train.py
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-id=2 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-id=1 train.py
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --rdzv-id=1 train.py
    """
    nodes = [n for n in job.nodes if n.plan.is_multinode and n.plan.is_standalone is False]
    yield from differing(launch, nodes, lambda n: n.plan.rdzv_id, "rdzv_id", "--rdzv-id")


@rdzv_id_differs.look
def ids_of_hosts(submission: Submission) -> Iterator[Finding]:
    """A script that every node runs makes the id of something that differs per node, such as `$(hostname)`."""
    for step, task, agent in agents_of(submission):
        plan, setting = agent.plan, agent.plan.settings.get("rdzv_id")
        word = None if setting is None else setting.word
        is_each_node = (
            task.launcher is None and not task.via and task.line.pod is None and not submission.grant.scheduler
        )
        is_several = plan.nnodes is not None and plan.nnodes[0] > 1 and plan.backend not in (None, "static")
        if word is None or not is_each_node or not is_several or len(step.hosts) > 1:
            continue
        words = enumerate(task.line.argv)
        index = next((at for at, own in words if own.start <= word.start < max(own.end, own.start + 1)), None)
        if index in task.of_process:
            text = f"--rdzv-id differs on every node, for example {plan.rdzv_id or '':.30}"
            label = "use one id for all nodes"
            mark = mark_of(task, word)
            yield at_mark(submission, mark, text, seen="an id per node", expected="one id", label=label)


@duplicate_node_rank.look
def not_joined(log: Log) -> Iterator[Finding]:
    """What all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.DUPLICATE_NODE_RANK)
