"""NET012: a c10d rendezvous whose store nobody hosts, as the nodes' lines show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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


@cause("NET012", "rdzv-host-mismatch", Severity.ERROR, stage=CausalStage.REACHABILITY)
def rdzv_host_mismatch(
    launch: Launch | None = None, nodes: Nodes | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """No node takes itself for the owner of the rendezvous endpoint.

    ## Why it matters
    Nothing listens although the host is up and the port is free: with c10d a node hosts the store only if the endpoint is its
    hostname or an address of that name. A second card's address, an alias, or 127.0.1.1 in /etc/hosts means that nobody does.

    ## Fix
    Use node 0's own hostname as the endpoint, or --rdzv-conf is_host=1 there and is_host=0 elsewhere, or static rendezvous.

    ## Source
    torch/distributed/elastic/rendezvous/utils.py: `_matches_machine_hostname`.
    """
    if nodes is not None:
        yield from _met(nodes)
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
                "this line, which all nodes run, has is_host=0" if not alone else "the only node has is_host=0",
            )


def _met(nodes: Nodes) -> Iterator[Finding]:
    """Nobody, or more than one, by torch's own test on each machine."""
    if nodes.form != Form.C10D or len(nodes.nodes) < 2:
        return
    owners = [node for node in nodes.nodes if node.owns]
    first = nodes.nodes[0]
    endpoint = f"{first.master_addr}:{first.master_port}"
    if len({node.machine for node in owners}) > 1:
        yield about(
            owners,
            f"{named(owners)} all take themselves for the owner of {endpoint}: expected one, each of them hosts a store",
            "nodes.owns",
            named(owners),
            "one node",
            is_blamed=False,
        )
    if owners or not (len(nodes.nodes) >= (nodes.expected or 0) or any(node.is_at_master for node in nodes.nodes)):
        return
    there = next((node for node in nodes.nodes if node.is_at_master), None)
    leads = f", although it leads to {there.title}" if there is not None else ""
    wanted = f"{there.host} as the endpoint" if there is not None else "one owner"
    option = f"--rdzv-endpoint={there.host}:{first.master_port}" if there is not None else None
    yield Finding(
        f"no node takes itself for the owner of {endpoint}{leads}: nobody hosts the store; expected {wanted}",
        (Evidence("nodes.owns", "none", "one node"),),
        where=Where(host=there.host if there else None),
        fix=f"Start torchrun with {option} on every node." if option is not None else "",
        fix_command=option,
        fix_commands=(NodeCommand("all nodes", option),) if option is not None else (),
    )


def _is_host(plan: Plan) -> bool | None:
    """What rdzv_conf says of hosting the store; None when it leaves it to torch."""
    match = re.search(r"(?:^|,)\s*is_host\s*=\s*(\w+)", plan.settings["rdzv_conf"].value or "")
    return None if match is None else match[1].lower() not in _FALSE


def _not_hosting(launch: Launch, line: LaunchLine, layer: Layer, seen: str) -> Finding:
    given = layer.given("rdzv_conf")
    word = layer.program if given is None else given.value_word
    edits = None
    if given is not None and is_known(given.value_word.text) and launch.nodes[:1]:
        edits = [replace_word(word, re.sub(r"(is_host\s*=\s*)\w+", r"\g<1>1", word.text))]
    return point(
        launch, line, word, f"{seen}: nobody hosts the store; expected is_host=1 on one node", "is_host=1", edits
    )


def _not_named(launch: Launch, line: LaunchLine, plan: Plan, hosts: list[str | None]) -> Iterator[Finding]:
    """The endpoint against the names that ssh is given: addresses cannot be compared with names."""
    names = [(h or "").rpartition("@")[2].lower() for h in hosts]
    endpoint = (plan.host or "").lower()
    if not endpoint or is_loopback(endpoint) or not all(names) or any(_is_address(n) for n in (endpoint, *names)):
        return
    if endpoint.partition(".")[0] in {n.partition(".")[0] for n in names}:
        return
    told = f"the endpoint is {plan.host}, and the nodes are {', '.join(names[:4])}"
    text = f"{told}: the store is hosted by the node that has this name, or an address of its own name"
    given = None if line.agent is None else line.agent.given("rdzv_endpoint")
    if given is not None:
        yield point(launch, line, given.value_word, text, "a node's own hostname", None, severity=Severity.WARNING)


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*", name))


@rdzv_host_mismatch.look
def on_lines(launch: Launch) -> Iterable[Finding]:
    """The same from the lines alone."""
    return rdzv_host_mismatch(launch, None, job_of_launch(launch)) or ()
