"""Where the store of a launch line is: findings of ENV012 to ENV020, ENV024 and ENV027 about the options of a line.

The rules are in rules/environ, where the same causes are looked for in variables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from ddpdoctor.facts.environ import shorten
from ddpdoctor.facts.job import Agent, Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.reading import Given, ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, SpanEdit, quote
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.jobs import agent_of
from ddpdoctor.launch.rendezvous import ACCELERATE_NAMES, is_loopback
from ddpdoctor.rules.launch.nodes.launch034_to_037_039_nodes_disagree import differing
from ddpdoctor.rules.launch.nodes.own_master import own_masters
from ddpdoctor.rules.launch.pointing import (
    after,
    agents,
    correcting,
    option_text,
    point,
    remove,
    revalue,
    shown,
    spelled,
    where,
)
from ddpdoctor.rules.launch.rendezvous.launch025_to_027_031_to_033_046_rendezvous_settings import host0, most_nodes

__all__ = [
    "addresses_differ",
    "ignored",
    "loopback",
    "loopback_interface",
    "malformed",
    "port_invalid",
    "ports_differ",
    "privileged",
    "rank_zero_on_other_host",
    "uneven",
]

BARE_HOST = "a host name or address"
WORKERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def ignored(launch: Launch) -> Iterator[Finding]:
    """ENV012: variables that torchrun overwrites for the workers."""
    for line, layer, plan in agents(launch):
        overwritten = list(_overwritten(line, layer, plan))
        edits = [edit for name, option in overwritten for edit in _as_option(launch, line, layer, name, option)]
        for name, option in overwritten:
            word = next((v.word for v in reversed(layer.variables) if v.name == name), None)
            expected = "no such variable" if option is None else f"--{option.replace('_', '-')}"
            label = "has no effect" if option is None else f"use {expected}"
            text = f"{name}={shorten(line.environ.variables[name], 30)} is overwritten by {layer.name}"
            yield point(launch, line, word or layer.program, text, expected, edits or None, label=label)


def _overwritten(line: LaunchLine, layer: Layer, plan: Plan) -> Iterator[tuple[str, str | None]]:
    """The variables that have no effect, each with the option that has one."""
    variables = line.environ.variables
    for name, option, used in (("MASTER_ADDR", "master_addr", plan.host), ("MASTER_PORT", "master_port", plan.port)):
        value = variables.get(name)
        if not value or UNKNOWN in value or value == str(used) or plan.given(option):
            continue
        own_port = plan.is_rewritten or plan.is_standalone
        if (used is None and not own_port) or (own_port and name == "MASTER_ADDR" and is_loopback(value)):
            continue
        yield name, option if plan.asked == "static" and not is_loopback(value) and not plan.is_standalone else None
    for name in WORKERS:
        is_own = any(v.name == name for v in layer.variables)
        if is_own and not any(f"${name}" in w.raw or f"{{{name}}}" in w.raw for w in line.argv):
            yield name, None


def _as_option(launch: Launch, line: LaunchLine, layer: Layer, name: str, option: str | None) -> Iterator[SpanEdit]:
    """Remove the assignment, and add the option for it."""
    word = next((v.word for v in reversed(layer.variables) if v.name == name), None)
    if word is not None and word.raw:
        yield from remove(line, word)
    if option is not None:
        value = quote(line.environ.variables[name])
        yield after(layer.own[-1], f"{spelled(layer, option, launch.version)}={value}")


def privileged(launch: Launch) -> Iterator[Finding]:
    """ENV014: a port below 1024."""
    for line, layer, plan in agents(launch):
        if plan.port is None or not 0 < plan.port < 1024 or plan.is_standalone:
            continue
        dest = "rdzv_endpoint" if plan.settings["rdzv_endpoint"].value else "master_port"
        given = layer.given(dest)
        if given is not None:
            value = "29500" if dest == "master_port" else f"{plan.host}:29500"
            text, label = f"port {plan.port} is reserved for root", "use a port from 1024"
            yield point(launch, line, given.value_word, text, "1024 to 65535", [revalue(given, value)], label=label)


def port_invalid(launch: Launch) -> Iterator[Finding]:
    """ENV015: a value that is not a port number."""
    for line in launch.lines:
        layer, plan = line.agent, line.plan
        if layer is None or plan is None or layer.typos:
            continue
        given = layer.given("master_port")
        value = plan.settings["master_port"].value
        refused = any(
            p.trouble is ParseProblemKind.INVALID_VALUE and p.word is given.value_word
            for p in layer.reading.problems
            if given
        )
        used = not layer.is_garbled and not plan.is_standalone and plan.asked == "static" and value is not None
        if given is not None and (refused or used) and not _is_port(value or ""):
            yield _not_a_port(launch, line, given, f"{option_text(given):.40} is not a port number", "29500")
        endpoint = layer.given("rdzv_endpoint")
        if endpoint is None or layer.is_garbled or plan.is_standalone or not plan.settings["rdzv_endpoint"].value:
            continue
        host, sign, port = plan.settings["rdzv_endpoint"].value.rpartition(":")
        if sign and "://" not in host and not (port.isdigit() and len(port) <= 5 and int(port) < 65536):
            yield _not_a_port(launch, line, endpoint, f"{port!r:.20} is not a port number", f"{host}:29400")


def _not_a_port(launch: Launch, line: LaunchLine, given: Given, message: str, value: str) -> Finding:
    label = "use 1024 to 65535"
    job, port = line.environ.variables.get("SLURM_JOB_ID"), given.value or ""
    if job is not None and port.isdigit() and len(port) >= len(job) > len("65535"):
        message = f"with a job id such as {job:.20} the port is {port:.20}"
    return point(launch, line, given.value_word, message, "1024 to 65535", [revalue(given, value)], label=label)


def _is_port(text: str) -> bool:
    return bool(re.fullmatch(r"\s*\+?[0-9]{1,9}\s*", text)) and 0 < int(text) < 65536


def malformed(
    launch: Launch, problem: Callable[[str], str | None], parts: Callable[[str], tuple[str | None, str | None]]
) -> Iterator[Finding]:
    """ENV016: an address that is not a bare host."""
    for line, layer, plan in agents(launch):
        given = layer.given("master_addr")
        address = plan.settings["master_addr"].value
        is_read = plan.backend == "static" and plan.settings["rdzv_endpoint"].value == ""
        if given is not None and address == "" and is_read:
            meant = host0(line) if plan.is_multinode else "localhost"
            text, edits = f"{shown(given.word)} is empty", [revalue(given, meant)]
            yield point(launch, line, given.value_word, text, BARE_HOST, edits, label=f"use {BARE_HOST}")
        elif given is not None and address and is_read:
            fault = problem(address.strip("[]") if re.fullmatch(r"\[[0-9a-fA-F:.]+\]", address) else address)
            if fault is not None:
                yield _malformed(launch, line, layer, address, fault, parts(address))
        endpoint = layer.given("rdzv_endpoint")
        value = plan.settings["rdzv_endpoint"].value
        if endpoint is not None and value and not plan.is_standalone and "://" in value:
            host, port = parts(value)
            changes = [revalue(endpoint, f"{host}:{port or 29400}")] if host else None
            text = f"{shorten(value, 50)} is a URL"
            yield point(launch, line, endpoint.value_word, text, "HOST:PORT", changes, label="use HOST:PORT")
        elif endpoint is not None and not plan.is_standalone and re.search(_NO_NAME, plan.host or ""):
            fault = problem(plan.host or "")
            if fault is not None:
                text = f"{shorten(plan.host or '', 30)} {fault}"
                yield point(launch, line, endpoint.value_word, text, "HOST:PORT", label="use one node's address")


_NO_NAME = re.compile(r"\A[\d.]+\Z|[^\w.:-]")
"""Numbers, and what holds a sign that torch does not accept in the host of an endpoint."""


def _malformed(
    launch: Launch, line: LaunchLine, layer: Layer, address: str, fault: str, parts: tuple[str | None, str | None]
) -> Finding:
    given = layer.given("master_addr")
    assert given is not None
    host, port = parts
    edits = None
    if host:
        edits = [revalue(given, host)]
        if port and layer.given("master_port") is None:
            edits.append(after(given.value_word, f"{spelled(layer, 'master_port', launch.version)}={port}"))
    text = f"--master-addr={shorten(address, 30)} {fault}"
    return point(launch, line, given.value_word, text, BARE_HOST, edits, label=f"use {BARE_HOST}")


def loopback(launch: Launch) -> Iterator[Finding]:
    """ENV017: a master address that points each node at itself."""
    for agent in (agent for line in launch.lines if (agent := agent_of(line)) is not None):
        line, layer, plan = agent.line, agent.layer, agent.plan
        if plan.backend != "static" or plan.settings["rdzv_endpoint"].value or not plan.given("master_addr"):
            continue
        count = most_nodes(line, plan)
        if count < 2 or not is_loopback(plan.host):
            continue
        if line.node is None and any(x.is_background for x in launch.lines):
            continue  # several launchers of one script on one machine can join there
        given = layer.given("master_addr") or layer.given(ACCELERATE_NAMES["master_addr"])
        text = f"{plan.host} points each of {count} nodes at itself"
        edits = None if given is None else [revalue(given, host0(line))]
        word = layer.program if given is None else given.value_word
        expected, label = "an address that other nodes can reach", "use node 0's address"
        yield point(launch, line, word, text, expected, edits, label=label)


def rank_zero_on_other_host(launch: Launch, job: Job) -> Iterator[Finding]:
    """ENV018: node rank 0 runs on another host than the master address, if ssh names the host."""
    for node in job.nodes:
        plan, host = node.plan, node.line.host
        if (
            plan.backend != "static"
            or plan.node_rank != 0
            or host is None
            or plan.host is None
            or is_loopback(plan.host)
        ):
            continue
        here = host.rpartition("@")[2]
        others = {n.line.host.rpartition("@")[2] for n in job.nodes if n.line.host is not None}
        first = {n.line.host for n in job.nodes if n.plan.node_rank == 0}
        if plan.host in first:
            continue  # two nodes have rank 0: LAUNCH036
        if here != plan.host and plan.host in others:
            given = node.layer.given("master_addr")
            text = f"node rank 0 runs on {here}, but the master address is {plan.host}"
            edits = None if given is None else [revalue(given, here)]
            word = None if given is None else given.value_word
            yield point(launch, node.line, word, text, here, edits, label=f"use {here}")


def ports_differ(launch: Launch, job: Job) -> Iterator[Finding]:
    """ENV019: the master ports of the nodes differ."""
    nodes = [n for n in job.nodes if not n.plan.is_rewritten and n.plan.is_standalone is False]
    for backend in ("static", "c10d"):
        same = [n for n in nodes if n.plan.backend == backend]
        ends = any(n.plan.settings["rdzv_endpoint"].value for n in same)
        for finding in differing(launch, same, lambda n: n.plan.port, "master_port", "master port"):
            yield _endpoint_fix(launch, finding, same) if ends else finding


def addresses_differ(launch: Launch, job: Job) -> Iterator[Finding]:
    """ENV020: the master addresses of the nodes differ."""
    yield from own_masters(launch)
    nodes = [n for n in job.nodes if not n.plan.is_rewritten and n.plan.is_standalone is False]
    for backend in ("static", "c10d"):
        same = [n for n in nodes if n.plan.backend == backend]
        if all(is_loopback(n.plan.host) for n in same):
            continue
        ends = any(n.plan.settings["rdzv_endpoint"].value for n in same)
        for finding in differing(launch, same, _host, "master_addr", "master address"):
            yield _endpoint_fix(launch, finding, same) if ends else finding


def _host(node: Agent) -> str | None:
    return None if node.plan.host is None else node.plan.host.lower()


def _endpoint_fix(launch: Launch, finding: Finding, nodes: list[Agent]) -> Finding:
    """The corrected line if the port or host is a part of --rdzv-endpoint."""
    counts = Counter((n.plan.host, n.plan.port) for n in nodes)
    (host, port), _ = counts.most_common(1)[0]
    for node in nodes:
        given = node.layer.given("rdzv_endpoint")
        if (node.plan.host, node.plan.port) != (host, port) and given is not None:
            return correcting(finding, launch, (node.line, [revalue(given, f"{host}:{port}")]))
    return replace(finding, fix_command=None, line_edits=())


def uneven(job: Job) -> Iterator[Finding]:
    """ENV013: TORCH_ELASTIC_WORKER_IDENTICAL=1 and lines with different numbers of processes."""
    nodes = [n for n in job.nodes if n.line.environ.variables.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1"]
    counts = {n.plan.nproc for n in nodes if n.plan.nproc is not None}
    if len(counts) > 1:
        numbers = " or ".join(str(c) for c in sorted(c for c in counts if c is not None))
        yield Finding(
            f"TORCH_ELASTIC_WORKER_IDENTICAL=1 with {numbers} ranks per node",
            tuple(Evidence(f"launch.lines[{n.line.node}]", str(n.plan.nproc), "one number") for n in nodes[:16]),
            fix_command="unset TORCH_ELASTIC_WORKER_IDENTICAL",
        )


def loopback_interface(launch: Launch, name: str) -> Iterator[Finding]:
    """ENV024, ENV027: a line for several nodes with the loopback interface."""
    for line in launch.lines:
        value = line.environ.variables.get(name, "")
        plan = line.plan
        several = plan is not None and plan.nnodes is not None and plan.nnodes[0] > 1
        if several and value.lstrip("=").split(":")[0] == "lo" and line.program is not None:
            word = next((v.word for v in line.program.variables if v.name == name), None)
            finding = Finding(
                f"{name}={value:.20} cannot reach the other nodes",
                (Evidence(f"environ.variables.{name}", value, "an interface that other nodes can reach"),),
                fix_command=f"unset {name}",
                where=where(line, word),
                severity=Severity.ERROR,
                label="use the interface between the nodes",
            )
            yield correcting(finding, launch, (line, remove(line, word))) if word is not None and word.raw else finding
