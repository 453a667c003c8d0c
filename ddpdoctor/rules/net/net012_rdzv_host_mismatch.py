"""NET012: a c10d rendezvous whose store no node hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddpdoctor.facts.addresses import malformation
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.facts.nodes import Form, Nodes
from ddpdoctor.findings import CausalStage, Evidence, Finding, NodeCommand, Severity, Where
from ddpdoctor.launch.jobs import job_of_launch
from ddpdoctor.launch.rendezvous import is_loopback
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, replace_word
from ddpdoctor.rules.node_findings import about, named, only_met

_FALSE = ("0", "false", "f", "no", "n")


@cause(
    "NET012",
    "rdzv-host-mismatch",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    repairs=("address", "wrap", "escape"),
)
def rdzv_host_mismatch(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """No node hosts the rendezvous store, because no hostname matches the endpoint.

    ## Why it matters
    With c10d a node hosts the store only if the endpoint is its hostname or an address of that name. With the address of
    another NIC, an alias, or 127.0.1.1 in /etc/hosts, nothing listens, although the host is up and the port is free.

    ## Fix
    Use node 0's own hostname as the endpoint on all nodes, or set `--rdzv-conf is_host=1` on node 0 and `is_host=0` on the
    others, or use static rendezvous.

    ## Example
    ddpdoctor's message:

        no node hosts the store at ib-node0:29400, although it resolves to node 0 (node0)

    On every node:

        # before
        torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint ib-node0:29400 train.py
        # after
        torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py

    ## Source
    torch/distributed/elastic/rendezvous/utils.py: `_matches_machine_hostname`.
    """
    if nodes is not None:
        yield from _owners(nodes)
    if only_met(nodes, launch):
        return
    assert launch is not None
    assert job is not None
    lines = [n for n in job.nodes if n.plan.backend == "c10d" and n.plan.is_standalone is False]
    if lines and len(lines) == len(launch.nodes):
        hosts = [_is_host(n.plan) for n in lines]
        if all(h is False for h in hosts):
            first = lines[0]
            yield _not_hosting(launch, first.line, first.layer, f"all {len(lines)} nodes have is_host=0")
        elif all(h is None for h in hosts):
            yield from _not_named(launch, lines[0].line, lines[0].plan, [n.line.host for n in lines])
        return
    for line, layer, plan in agents(launch):
        alone = plan.nnodes is not None and plan.nnodes[1] == 1
        everywhere = alone or (line.task_starter is not None and plan.is_multinode)
        if plan.backend == "c10d" and plan.is_standalone is False and everywhere and _is_host(plan) is False:
            yield _not_hosting(
                launch,
                line,
                layer,
                "this line has is_host=0 and runs on all nodes" if not alone else "the only node has is_host=0",
            )


def _owners(nodes: Nodes) -> Iterator[Finding]:
    """No node, or more than one, hosts the store, by torch's own test on each machine."""
    if nodes.form != Form.C10D or len(nodes.nodes) < 2:
        return
    owners = [node for node in nodes.nodes if node.owns]
    first = nodes.nodes[0]
    endpoint = f"{first.master_addr}:{first.master_port}"
    if len({node.machine for node in owners}) > 1:
        yield about(
            owners,
            f"{named(owners)} would each host a store for {endpoint}",
            "nodes.owns",
            named(owners),
            "one node",
            is_blamed=False,
        )
    if owners or not (len(nodes.nodes) >= (nodes.expected or 0) or any(node.is_at_master for node in nodes.nodes)):
        return
    master = next((node for node in nodes.nodes if node.is_at_master), None)
    resolved = f", although it resolves to {master.title}" if master is not None else ""
    option = f"--rdzv-endpoint={master.host}:{first.master_port}" if master is not None else None
    yield Finding(
        f"no node hosts the store at {endpoint}{resolved}",
        (Evidence("nodes.owns", "none", "one node"),),
        where=Where(host=master.host if master else None),
        fix=f"Start torchrun with {option} on every node." if option is not None else "",
        fix_command=option,
        fix_commands=(NodeCommand("all nodes", option),) if option is not None else (),
    )


def _is_host(plan: Plan) -> bool | None:
    """Whether rdzv_conf makes this node host the store; None if it leaves that to torch."""
    match = re.search(r"(?:^|,)\s*is_host\s*=\s*(\w+)", plan.settings["rdzv_conf"].value or "")
    return None if match is None else match[1].lower() not in _FALSE


def _not_hosting(launch: Launch, line: LaunchLine, layer: Layer, setting: str) -> Finding:
    given = layer.given("rdzv_conf")
    word = layer.program if given is None else given.value_word
    edits = None
    if given is not None and is_known(given.value_word.text) and launch.nodes[:1]:
        edits = [replace_word(word, re.sub(r"(is_host\s*=\s*)\w+", r"\g<1>1", word.text))]
    text, label = f"{setting}: no node hosts the store", "set is_host=1 on node 0"
    return point(launch, line, word, text, "is_host=1", edits, label=label)


def _not_named(launch: Launch, line: LaunchLine, plan: Plan, hosts: list[str | None]) -> Iterator[Finding]:
    """The endpoint compared with the node names given to ssh; addresses cannot be compared with names."""
    names = [(h or "").rpartition("@")[2].lower() for h in hosts]
    endpoint = (plan.host or "").lower()
    if (
        not endpoint
        or malformation(endpoint)
        or is_loopback(endpoint)
        or not all(names)
        or any(_is_address(n) for n in (endpoint, *names))
    ):
        return
    if endpoint.partition(".")[0] in {n.partition(".")[0] for n in names}:
        return
    text = (
        f"endpoint {plan.host} is not the name of any node ({', '.join(names[:4])}), so perhaps no node hosts the store"
    )
    given = None if line.agent is None else line.agent.given("rdzv_endpoint")
    if given is not None:
        word, expected, label = given.value_word, "a node's own hostname", "use node 0's own hostname"
        yield point(launch, line, word, text, expected, None, label=label, severity=Severity.WARNING)


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+|(?=[0-9a-f]*:)[0-9a-f:]+", name))


@rdzv_host_mismatch.look
def on_lines(launch: Launch) -> Iterable[Finding]:
    """The same check on launch lines only."""
    return rdzv_host_mismatch(launch, None, job_of_launch(launch)) or ()
