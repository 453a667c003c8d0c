"""LAUNCH034 to 037, 039: the lines of one job, one a node, held against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import Launcher
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import quote
from ddpdoctor.facts.nodes import Form, Nodes, split
from ddpdoctor.facts.nodes import Node as Member
from ddpdoctor.findings import Evidence, Finding, NodeCommand, Severity, Where
from ddpdoctor.launch.rendezvous import ACCELERATE_NAMES, plan_of_machines
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.nodes.same_rank import same_for_all
from ddpdoctor.rules.launch.pointing import after, corrected, revalue, spelled, where
from ddpdoctor.rules.node_findings import differs, only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["Node", "differing", "node_of", "nodes_of"]

MOST_COMMANDS = 8
T = TypeVar("T", str, int)


class Node(NamedTuple):
    """One node's line, its torchrun or accelerate, and what that will do, in torchrun's words."""

    line: Line
    layer: Layer
    plan: Plan


def nodes_of(launch: Launch) -> list[Node]:
    """The nodes whose lines can be read; [] unless there are at least two."""
    found = [node for line in launch.nodes if (node := node_of(line)) is not None]
    return found if len(found) > 1 else []


def node_of(line: Line) -> Node | None:
    """A line whose torchrun or accelerate can be read."""
    if line.agent is not None:
        return None if line.plan is None or line.agent.is_garbled else Node(line, line.agent, line.plan)
    layer = line.layer(Launcher.ACCELERATE)
    if layer is None or layer.is_garbled:
        return None
    plan = plan_of_machines(layer, line.config or {})
    return None if plan is None else Node(line, layer, plan)


def differing(
    launch: Launch,
    nodes: list[Node],
    value: Callable[[Node], T | None],
    option: str,
    name: str,
    severity: Severity | None = None,
) -> Iterator[Finding]:
    """One finding when the nodes' values differ: the minority is to blame; on a tie both sides are named.

    Args:
        value: what a node has, None when it is not known.
        option: the option that holds it, for the corrected line.
        name: how the message calls it.
    """
    known = [(node, v) for node in nodes if (v := value(node)) is not None]
    counts = Counter(v for _, v in known)
    if len(counts) < 2:
        return
    (common, most), (_, second) = counts.most_common(2)
    told = "; ".join(f"{_places([n for n, v in known if v == each])}: {each}" for each in counts)
    blamed = [n for n, v in known if v != common]
    tie = most == second
    one = blamed[0] if len(blamed) == 1 and not tie else None
    target = blamed[0]
    yield Finding(
        f"{name} differs between the nodes ({told}): expected one value",
        tuple(Evidence(f"launch.lines[{n.line.node}]", str(v), str(common)) for n, v in known[:16]),
        fix_command=_agreeing(launch, target, option, str(common)),
        where=_place(one) if one is not None else Where(),
        severity=severity,
    )


def _places(nodes: list[Node]) -> str:
    """Lines by their number, nodes that brought their lines to a meeting by their names."""
    hosts = [n.line.host for n in nodes if n.line.host and not any(each.name == "ssh" for each in n.line.layers)]
    if len(hosts) == len(nodes):
        return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    indices = [str(n.line.node) for n in nodes]
    shown = ", ".join(indices[:8]) + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")
    return f"node{'s' if len(indices) > 1 else ''} {shown}"


def _place(node: Node) -> Where:
    return where(node.line, node.layer.program)


def _agreeing(launch: Launch, node: Node, option: str, value: str) -> str | None:
    name = ACCELERATE_NAMES.get(option, option) if node.layer.launcher is Launcher.ACCELERATE else option
    given = node.layer.given(name)
    if option in ("master_addr", "master_port") and node.plan.settings["rdzv_endpoint"].value:
        return None  # it is a part of the endpoint
    if given is not None:
        return corrected(node.line, [revalue(given, quote(value))])
    last = node.layer.own[-1]
    return corrected(node.line, [after(last, f"{spelled(node.layer, name, launch.version)}={quote(value)}")])


@cause("LAUNCH034", "rdzv-backend-differs", Severity.ERROR)
def rdzv_backend_differs(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """The nodes use different rendezvous backends.

    ## Why it matters
    static and c10d are two protocols on one store: each side waits for keys that the other never writes, for 10 to 30 minutes.
    Ranks that are started by hand do not meet those of torchrun either.

    ## Fix
    Give every node the same --rdzv-backend.
    """
    if nodes is not None and any(node.form == Form.ENV for node in nodes.nodes):
        found = split(nodes.nodes, lambda node: str(node.form))
        if found is not None:
            yield differs(
                found, "how the nodes meet", "form", fix="Start all nodes in one way: torchrun, or ranks by hand."
            )
    if only_met(nodes, launch):
        return
    assert launch is not None
    lines = [n for n in nodes_of(launch) if n.plan.is_standalone is False and not n.plan.is_rewritten]
    yield from differing(launch, lines, lambda n: n.plan.backend, "rdzv_backend", "--rdzv-backend")


@cause("LAUNCH035", "nnodes-differs", Severity.ERROR)
def nnodes_differs(launch: Launch) -> Iterator[Finding]:
    """The nodes were given different --nnodes.

    ## Why it matters
    With static rendezvous only the number of node rank 0 counts: where another node says more, the job trains and hangs at its
    end; where rank 0 says more, it waits for a node that does not exist. With c10d the nodes wait for ever.

    ## Fix
    Give every node the same --nnodes.
    """
    nodes = nodes_of(launch)
    if nodes and all(n.plan.nnodes == (1, 1) for n in nodes):
        return
    lucky = [n for n in nodes if _follows(n)]
    rest = [n for n in nodes if n not in lucky]
    yield from differing(launch, rest, _nnodes, "nnodes", "--nnodes")
    if lucky and rest and not list(differing(launch, rest, _nnodes, "nnodes", "--nnodes")):
        yield from differing(launch, nodes, _nnodes, "nnodes", "--nnodes", Severity.WARNING)


def _follows(node: Node) -> bool:
    """A static node above rank 0 without --nnodes: it takes the number of node rank 0, by luck."""
    plan = node.plan
    return plan.backend == "static" and not plan.given("nnodes") and (plan.node_rank or 0) > 0


def _nnodes(node: Node) -> str | None:
    if node.plan.nnodes is None:
        return None
    low, high = node.plan.nnodes[0], node.plan.nnodes[-1]
    return str(high) if low == high else f"{low}:{high}"


def _static(launch: Launch) -> list[Node]:
    return [n for n in nodes_of(launch) if n.plan.backend == "static"]


@cause("LAUNCH036", "duplicate-node-rank", Severity.ERROR)
def duplicate_node_rank(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two nodes have the same --node-rank.

    ## Why it matters
    Two nodes of rank 0 on different machines both open a store and wait 15 minutes without an error; on one machine the second
    says EADDRINUSE. The same rank above 0 twice leaves another rank empty.

    ## Fix
    Give every node its own --node-rank from 0, or use c10d, which needs none.
    """
    if nodes is not None:
        yield from _claimed_twice(nodes)
    if only_met(nodes, launch):
        return
    assert launch is not None
    yield from same_for_all(launch)
    lines = _static(launch)
    if not any(n.plan.given("node_rank") or n.plan.given("master_addr") for n in lines):
        return
    ranks = Counter(n.plan.node_rank for n in lines if n.plan.node_rank is not None)
    free = iter(r for r in range(len(lines)) if r not in ranks)
    for rank, count in ranks.items():
        if count > 1:
            same = [n for n in lines if n.plan.node_rank == rank]
            yield Finding(
                f"{count} nodes have --node-rank={rank} ({_places(same)}): expected each rank once",
                tuple(Evidence(f"launch.lines[{n.line.node}]", str(rank), "a rank of its own") for n in same[:16]),
                fix_command=_agreeing(launch, same[1], "node_rank", str(next(free, rank))),
                where=_place(same[1]) if count == 2 and rank > 0 else Where(),
            )


def _claimed_twice(nodes: Nodes) -> Iterator[Finding]:
    """Nodes with one number, whose lines are not known here or say so in another way."""
    groups: dict[int, list[Member]] = {}
    for node in nodes.nodes:
        if node.form == Form.STATIC and node.node_rank is not None:
            groups.setdefault(node.node_rank, []).append(node)
    for rank, found in groups.items():
        if len(found) > 1 and not (found[0].is_scheduled and len({node.machine for node in found}) == 1):
            hosts = ", ".join(node.host for node in found[:8])
            yield Finding(
                f"{len(found)} nodes have --node-rank={rank} ({hosts}): expected each rank once",
                (Evidence("nodes.node_rank", f"{rank} on {hosts}", "each rank once"),),
                where=Where(node_rank=rank),
            )


@cause("LAUNCH037", "node-rank-zero-missing", Severity.ERROR)
def node_rank_zero_missing(launch: Launch) -> Iterator[Finding]:
    """No node of the job has --node-rank 0.

    ## Why it matters
    Nobody opens the store: all nodes are clients and wait up to half an hour without a line. Mostly the ranks were counted
    from 1.

    ## Fix
    Number the nodes from 0.
    """
    nodes = _static(launch)
    ranks = [n.plan.node_rank for n in nodes]
    if not nodes or len(nodes) < len(launch.nodes) or None in ranks or 0 in ranks:
        return
    if nodes[0].plan.nnodes is not None and len(nodes) < nodes[0].plan.nnodes[-1] and min(r or 0 for r in ranks) > 0:
        numbered = sorted(r or 0 for r in ranks)
        if (
            numbered == list(range(numbered[0], numbered[0] + len(numbered)))
            and numbered[-1] < nodes[0].plan.nnodes[-1]
        ):
            return  # some of the job's lines are not here: rank 0 may be one of them
    fixed = [_agreeing(launch, n, "node_rank", str(i)) for i, n in enumerate(nodes)]
    commands = [NodeCommand(_places([n]), f) for n, f in zip(nodes, fixed, strict=True) if f]
    is_whole = all(fixed) and len(fixed) <= MOST_COMMANDS
    yield Finding(
        f"no node has --node-rank=0, the ranks are {', '.join(str(r) for r in ranks[:16])}: expected 0 to {len(nodes) - 1}",
        tuple(
            Evidence(f"launch.lines[{n.line.node}]", str(n.plan.node_rank), str(i)) for i, n in enumerate(nodes[:16])
        ),
        fix_command="\n".join(each.command for each in commands) if is_whole else None,
        fix_commands=tuple(commands) if is_whole else (),
    )


@cause("LAUNCH039", "rdzv-id-differs", Severity.ERROR)
def rdzv_id_differs(launch: Launch) -> Iterator[Finding]:
    """The nodes were given different --rdzv-id.

    ## Why it matters
    Nodes with different ids never see each other's keys, with c10d and with static rendezvous alike: all wait for 10 to 30
    minutes. `$RANDOM` and the time of day differ on every node.

    ## Fix
    Give every node the same --rdzv-id.
    """
    nodes = [n for n in nodes_of(launch) if n.plan.is_multinode and n.plan.is_standalone is False]
    yield from differing(launch, nodes, lambda n: n.plan.rdzv_id, "rdzv_id", "--rdzv-id")


@duplicate_node_rank.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided over what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.DUPLICATE_NODE_RANK)
