"""The host node judges what all nodes announced, for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddpdoctor.causality.arrange import following
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.engine import Outcome, judge
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding, NodeCommand, Severity, Where
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules import CauseScope, Rule, loaded
from ddpdoctor.rules.environ.env020_master_addr_differs import master_addr_differs
from ddpdoctor.rules.launch.nodes.launch034_to_037_039_nodes_disagree import duplicate_node_rank

if TYPE_CHECKING:
    from ddpdoctor.multinode.members import Member

__all__ = [
    "JobVerdict",
    "Share",
    "finding_of",
    "judge_nodes",
    "merged",
    "of_separate_machines",
    "refuted",
    "rules_of_nodes",
    "shares",
]

MOST_NAMED = 6
MOST_COMMANDS = 16
_OWN_NUMBER = re.compile(r"--(node|machine)[-_]rank[=\0]\d+")


@dataclass(frozen=True)
class Share:
    """One node's part of the probe: its ranks begin at `first_rank`; all nodes have `world_size` ranks."""

    first_rank: int
    node_rank: int
    nnodes: int
    world_size: int


@dataclass(frozen=True)
class JobVerdict:
    """The verdict on all nodes: the same findings on every node. `share` is None if no ranks are to be probed.

    `nodes` are all members on the host, and a summary of them on the others.
    `facts` are this node's, with the connection to the master.
    """

    outcome: Outcome
    share: Share | None = None
    nodes: Nodes | None = None
    facts: Facts | None = None
    refuted: frozenset[str] = frozenset()
    """Codes that the other nodes disproved, although they fit what this node sees."""
    is_host: bool = False
    is_first: bool = True
    """This process reports for its machine: it is the first rank on it that joined."""

    @property
    def is_alone(self) -> bool:
        """No other node joined."""
        return self.facts is not None

    @property
    def has_errors(self) -> bool:
        return any(finding.worst is Severity.ERROR for finding in self.outcome.findings)


def rules_of_nodes(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules that compare nodes."""
    return tuple(
        rule for rule in rules if rule.scope is CauseScope.LINES_OF_NODES or "nodes" in (*rule.needs, *rule.wants)
    )


def of_separate_machines() -> frozenset[str]:
    """Addresses that mean each machine itself: not a fault if all nodes turn out to be on one machine."""
    return frozenset(cause.code for cause in loaded() if cause.rule.scope is CauseScope.SEPARATE_MACHINES)


def refuted(nodes: Nodes) -> frozenset[str]:
    """The codes that are false for these nodes."""
    return of_separate_machines() if nodes.is_one_machine else frozenset()


def judge_nodes(
    rules: Sequence[Rule], nodes: Nodes, members: Sequence[Member], torch: str, gone: Sequence[Member] = ()
) -> Outcome:
    """The findings about the job: about the nodes' lines, about the nodes, and every node's own errors, including those
    of nodes that have `gone`.
    """
    own = [(member.node, finding_of(error)) for member in (*members, *gone) for error in member.errors]
    found = [(node, each) for node, each in own if each is not None]
    outcome = Outcome(findings=merged(found, len(members) + len(gone)))
    facts = Facts(schema=SCHEMA, collected_at="", hostname="", nodes=nodes)
    together = judge(facts, [rule for rule in rules if "nodes" in (*rule.needs, *rule.wants)])
    seen_by_nodes = {
        finding.code for finding in outcome.findings
    }  # including the place: at the word of a line, or on one host
    together.findings = [
        finding for finding in together.findings if finding.where != Where() or finding.code not in seen_by_nodes
    ]
    outcome.add(together)
    across = [rule for rule in rules if rule.scope is CauseScope.LINES_OF_NODES]
    lines = () if _are_alike(members) and not _claim_one_number(nodes) else _lines(members, torch)
    if not lines:
        outcome.passed += [each.code for each in across if members and members[0].line]
    elif len(lines) > 1:
        told = judge(
            replace(facts, nodes=None, environ=Environ(), launch=Launch(lines=lines, torch=torch)),
            across,
        )
        # Facts of the machines prove more than a command, as does the fact that all addresses resolve to one machine.
        known = {finding.code for finding in outcome.findings} - {duplicate_node_rank.code}
        known |= (
            {master_addr_differs.code}
            if nodes.is_main and all(_leads_to_host(node, nodes) for node in nodes.nodes)
            else set()
        )
        told.findings = [
            _placed(_with_commands(finding, lines, nodes.nodes), nodes.nodes)
            for finding in told.findings
            if finding.code not in known
        ]
        told.skipped = []
        outcome.findings = [finding for finding in outcome.findings if finding.code not in _with_a_line(told.findings)]
        outcome.add(told)
    moot = refuted(nodes)
    findings = [finding for finding in outcome.findings if finding.code not in moot]
    graph = CausalGraph(cause.rule for cause in loaded())
    outcome.findings = [_with_peer(finding, nodes.nodes) for finding in following(findings, graph, keeps_roles=False)]
    seen = {finding.code for finding in outcome.findings}
    outcome.passed = sorted({code for code in outcome.passed if code not in seen})
    return outcome


def _leads_to_host(node: Node, nodes: Nodes) -> bool:
    host = nodes.nodes[nodes.hosted_by]
    return node.came == "main" or bool({*node.master_addresses} & {*host.addresses, *host.master_addresses})


def _with_a_line(findings: Iterable[Finding]) -> set[str]:
    """The codes that are better found in the commands, where they can be corrected."""
    return {finding.code for finding in findings} & {duplicate_node_rank.code}


def _with_peer(finding: Finding, nodes: Sequence[Node]) -> Finding:
    """The name of the other end of a link, if the node that sent the finding knew only its address."""
    host = next((node.host for node in nodes if finding.where.peer in node.addresses), None)
    return finding if host is None else replace(finding, where=replace(finding.where, peer=host))


def _are_alike(members: Sequence[Member]) -> bool:
    """Whether the lines differ only in each node's own number: the usual case, in which none needs parsing."""
    return len({_likeness(member.line) for member in members}) == 1


def _claim_one_number(nodes: Nodes) -> bool:
    numbers = [node.node_rank for node in nodes.nodes if node.form == Form.STATIC]
    return len(set(numbers)) < len(numbers)


def _with_commands(finding: Finding, lines: Sequence[LaunchLine], nodes: Sequence[Node]) -> Finding:
    """The finding with the corrected line of each node that has one."""
    changed = list(dict.fromkeys(edit.line for edit in finding.line_edits))
    commands = (finding.fix_command or "").split("\n")
    if not finding.fix_command or len(changed) != len(commands):
        return finding
    named = [(nodes[lines[at].node or 0], command) for at, command in zip(changed, commands, strict=True)]
    return replace(finding, fix_commands=tuple(NodeCommand(_title(node, nodes), command) for node, command in named))


def _title(node: Node, nodes: Sequence[Node]) -> str:
    """How a command names its node: by host if no other node has the same host, otherwise by number."""
    is_only = sum(each.host == node.host for each in nodes) == 1
    if is_only or node.node_rank is None:
        return node.host
    twins = sum((each.host, each.node_rank) == (node.host, node.node_rank) for each in nodes)
    return f"node {node.node_rank}" if twins == 1 else f"one of the nodes with --node-rank {node.node_rank}"


def _likeness(line: Mapping[str, Any]) -> str:
    argv, environ = line.get("argv"), line.get("environ")
    words = "\0".join(map(str, argv)) if isinstance(argv, list) else ""
    variables = environ.items() if isinstance(environ, dict) else ()
    read = sorted((n, str(v)) for n, v in variables if n.startswith(("PET_", "TORCH")) and n != "PET_NODE_RANK")
    return f"{_OWN_NUMBER.sub('', words)} {read}"


def _lines(members: Sequence[Member], torch: str) -> tuple[LaunchLine, ...]:
    """The launch commands that the nodes announced, parsed here as `lint --node` parses them."""
    from ddpdoctor.collectors.launch import LocalFiles
    from ddpdoctor.facts.torchrun_options import NEWEST, version_of
    from ddpdoctor.launch.line import line_of_argv

    found = []
    files = LocalFiles()
    for index, member in enumerate(members):
        argv, environ, cwd = (member.line.get(key) for key in ("argv", "environ", "cwd"))
        if not isinstance(argv, list) or not isinstance(environ, dict) or not isinstance(cwd, str) or not argv:
            continue
        words, variables = [str(word) for word in argv], {str(n): str(v) for n, v in environ.items()}
        line = line_of_argv(words, variables, version_of(torch) or NEWEST, cwd, files)
        found.append(replace(line, node=index, host=member.node.host))
    return tuple(found)


def _placed(finding: Finding, nodes: Sequence[Node]) -> Finding:
    """A finding about the launch command of a node, at that node."""
    index = finding.where.node
    if index is None or not 0 <= index < len(nodes):
        return finding
    if finding.code == duplicate_node_rank.code:  # of two that claim one number, neither is more at fault
        return replace(finding, where=Where(node_rank=nodes[index].node_rank))
    return replace(finding, where=Where(host=nodes[index].host, node_rank=nodes[index].node_rank))


def merged(own: Sequence[tuple[Node, Finding]], count: int) -> list[Finding]:
    """The nodes' own findings, each once, with the nodes that have it."""
    groups: dict[tuple[str, str], list[tuple[Node, Finding]]] = {}
    for node, finding in own:
        groups.setdefault(finding.identity, []).append((node, finding))
    findings = []
    for group in groups.values():
        nodes, first = [node for node, _ in group], group[0][1]
        if len(nodes) == 1:
            node = nodes[0]
            where = replace(
                first.where,
                host=first.where.host or node.host,
                node_rank=node.node_rank if first.where.node_rank is None else first.where.node_rank,
                rank=node.rank if node.form == Form.ENV else first.where.rank,
            )
            findings.append(replace(first, where=where, ranks=first.ranks or _ranks(nodes)))
            continue
        hosts = list(dict.fromkeys(node.host for node in nodes))
        shown = ", ".join(hosts[:MOST_NAMED]) + (
            f" and {len(hosts) - MOST_NAMED} more" if len(hosts) > MOST_NAMED else ""
        )
        who = "on all nodes" if len(nodes) == count else f"on {shown}"
        where = replace(first.where, host=hosts[0] if len(hosts) == 1 else None, node_rank=None, rank=None)
        ranks = () if len(nodes) == count else _ranks(nodes)
        commands = _commands_of(group, is_all=len(nodes) == count)
        findings.append(replace(first, about=who, where=where, ranks=ranks, fix_commands=commands))
    return findings


def _commands_of(group: Sequence[tuple[Node, Finding]], *, is_all: bool) -> tuple[NodeCommand, ...]:
    """The commands for the nodes that have one finding: they may differ, as the names of interfaces do."""
    told = {_title(node, [n for n, _ in group]): each.fix_command for node, each in group if each.fix_command}
    if is_all and len(told) > 0 and len(set(told.values())) == 1:
        return (NodeCommand("all nodes", next(iter(told.values()))),)
    return tuple(NodeCommand(on, command) for on, command in told.items())[:MOST_COMMANDS]


def _ranks(nodes: Iterable[Node]) -> tuple[int, ...]:
    return tuple(sorted(node.rank for node in nodes if node.form == Form.ENV and node.rank is not None))


def finding_of(told: object) -> Finding | None:
    """A finding that a node sent, None if the value is not a finding."""
    try:
        return decode(Finding, told)
    except FactsError:
        return None


def shares(members: Sequence[Member]) -> dict[str, Share]:
    """Each node's ranks, by the member's key; {} if a number is unknown, or if ranks are the members themselves."""
    counts = [member.node.nproc for member in members]
    if any(member.node.form == Form.ENV for member in members) or not all(counts):
        return {}
    found, first, world = {}, 0, sum(count or 0 for count in counts)
    for index, member in enumerate(members):
        found[member.key] = Share(first, index, len(members), world)
        first += member.node.nproc or 0
    return found


def why_no_ranks(outcome: Outcome) -> Gap:
    """Why no ranks were started after a verdict with errors."""
    codes = [finding.code for finding in outcome.findings if finding.worst is Severity.ERROR]
    return Gap("probe", f"the nodes cannot work together ({codes[0]}), so no ranks were started", Why.NOT_HERE)
