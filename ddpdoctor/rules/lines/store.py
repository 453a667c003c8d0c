"""NET011, NET012, NET018 as lines show them: ports of a container, nobody who hosts the store, a store of an earlier run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch import Launch, Layer, Line, Plan, Word, is_known, is_loopback
from ddpdoctor.facts.launch.container import container_of
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.launch.nodes.agreement import nodes_of
from ddpdoctor.rules.launch.pointing import agents, point, replace, shown

__all__ = ["nobody_hosts", "published", "stale"]

_INIT = re.compile(r"--?(?:dist[_-]?(?:url|init[_-]?method)|init[_-]?method)(?:=(.*))?")
_FALSE = ("0", "false", "f", "no", "n")


@on_lines("NET011")
def published(launch: Launch) -> Iterator[Finding]:
    """A container that publishes the endpoint's port alone, with the c10d rendezvous."""
    for line, _, plan in agents(launch):
        box = container_of(line)
        if box is None or not box.is_bridged or not plan.is_multinode or plan.backend != "c10d" or plan.is_standalone:
            continue
        if plan.port not in box.ports or len(box.ports) > 100:
            continue
        text = (
            f"the container publishes {len(box.ports)} port{'s' * (len(box.ports) > 1)}, {plan.port} among them, and c10d "
            "gives the workers a second, random one: expected --network=host"
        )
        word = next((g.value_word for g in box.layer.reading.given if g.flag in ("-p", "--publish")), box.run)
        edits = [
            replace(w, "--network=host")
            for w in [word]
            if w is not box.run and "=" in w.text and w.text.startswith("-")
        ]
        yield point(launch, line, word, text, "--network=host", edits or None)


@on_lines("NET012")
def nobody_hosts(launch: Launch) -> Iterator[Finding]:
    """is_host=0 on every node, or an endpoint that is the name of none of the hosts that ssh starts the nodes on."""
    nodes = [n for n in nodes_of(launch) if n.plan.backend == "c10d" and n.plan.is_standalone is False]
    if nodes and len(nodes) == len(launch.nodes):
        hosts = [_is_host(n.plan) for n in nodes]
        if all(h is False for h in hosts):
            first = nodes[0]
            yield _not_hosting(launch, first.line, first.layer, f"all {len(nodes)} nodes have is_host=0")
        elif all(h is None for h in hosts):
            yield from _not_named(launch, nodes[0].line, nodes[0].plan, [n.line.host for n in nodes])
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


def _is_host(plan: Plan) -> bool | None:
    """What rdzv_conf says of hosting the store; None when it leaves it to torch."""
    match = re.search(r"(?:^|,)\s*is_host\s*=\s*(\w+)", plan.settings["rdzv_conf"].value or "")
    return None if match is None else match[1].lower() not in _FALSE


def _not_hosting(launch: Launch, line: Line, layer: Layer, seen: str) -> Finding:
    given = layer.given("rdzv_conf")
    word = layer.program if given is None else given.value_word
    edits = None
    if given is not None and is_known(given.value_word.text) and launch.nodes[:1]:
        edits = [replace(word, re.sub(r"(is_host\s*=\s*)\w+", r"\g<1>1", word.text))]
    return point(
        launch, line, word, f"{seen}: nobody hosts the store; expected is_host=1 on one node", "is_host=1", edits
    )


def _not_named(launch: Launch, line: Line, plan: Plan, hosts: list[str | None]) -> Iterator[Finding]:
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


@on_lines("NET018")
def stale(launch: Launch) -> Iterator[Finding]:
    """A store that outlives the job and is used again under the same name: etcd, or a file."""
    seen: dict[tuple[str | None, int | None, str | None], Line] = {}
    for line, layer, plan in agents(launch):
        if plan.backend in ("etcd", "etcd-v2") and plan.rdzv_id is not None and line.node is None and plan.host:
            key = (plan.host, plan.port, plan.rdzv_id)
            if key in seen and seen[key].file == line.file:
                given = layer.given("rdzv_id")
                text = f"an earlier launch of this file leaves its rendezvous {plan.rdzv_id!r} in etcd: expected an id of its own"
                yield point(
                    launch, line, layer.program if given is None else given.value_word, text, "another --rdzv-id"
                )
            seen.setdefault(key, line)
    for line in launch.lines:
        found = _init_file(line)
        if found is not None and found[1] not in line.before.get("removed", "").split():
            word, path = found
            text = f"{shown(word)}: after a crash {path} holds the ranks of the dead job; expected a new file for each attempt"
            yield Finding(
                text,
                (Evidence("launch.script.init_file", path, "a path with the job's id"),),
                where=point(launch, line, word, text, "").where,
                severity=Severity.NOTE,
            )


def _init_file(line: Line) -> tuple[Word, str] | None:
    """The file of the process group that the script's arguments name, when its name is the same in every run."""
    words = line.program.reading.arguments if line.program is not None else ()
    for i, word in enumerate(words):
        match = _INIT.fullmatch(word.text)
        if match is None:
            continue
        given = word if match[1] is not None else words[i + 1] if i + 1 < len(words) else word
        value = match[1] if match[1] is not None else given.text
        if value.startswith("file://") and is_known(value) and "$" not in given.raw:
            return given, value.removeprefix("file://")
    return None
