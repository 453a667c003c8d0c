"""LAUNCH025 to 027, 031 to 033, 046: a line for several nodes that cannot make them meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, SpanEdit
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.rendezvous import DEFAULT_C10D_PORT, DEFAULT_PORT, is_loopback
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.pointing import HOST0, after, agents, point, remove, revalue, shown, spelled

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["add", "c10d_options", "host0", "most_nodes"]

FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def host0(line: LaunchLine) -> str:
    """How a corrected line names the node of rank 0: MASTER_ADDR where that is set, Slurm's first host, else HOST0."""
    address = line.environ.variables.get("MASTER_ADDR", "")
    if address and UNKNOWN not in address and not is_loopback(address) and re.fullmatch(r"[\w.-]+", address):
        return address
    if line.pod is not None:
        return _first_pod(line.pod) or HOST0
    return FIRST_HOST if line.layer(LauncherKind.SRUN) is not None or line.batch is not None else HOST0


def _first_pod(pod: Pod) -> str | None:
    """The name of the pod with rank 0, or the variable in which the operator gives it."""
    variable = {Operator.PYTORCHJOB: "MASTER_ADDR", Operator.TRAINJOB: "PET_MASTER_ADDR"}.get(pod.operator)
    if variable is not None:
        return f"${variable}" if pod.in_shell else f"$({variable})"
    named = pod.operator in (Operator.STATEFULSET, Operator.JOB) and pod.name and pod.service
    return f"{pod.name}-0.{pod.service}" if named else None


def add(launch: Launch, layer: Layer, *options: tuple[str, str]) -> list[SpanEdit]:
    """Put options at the end of the launcher's own, in the line's style."""
    text = " ".join(f"{spelled(layer, name, launch.version)}={value}" for name, value in options)
    return [after(layer.own[-1], text)]


def c10d_options(line: LaunchLine, plan: Plan) -> list[tuple[str, str]]:
    """The options of a c10d rendezvous that the line lacks."""
    options = []
    if plan.asked != "c10d":
        options.append(("rdzv_backend", "c10d"))
    if plan.settings["rdzv_endpoint"].value == "":
        options.append(("rdzv_endpoint", f"{host0(line)}:{DEFAULT_C10D_PORT}"))
    return options


def most_nodes(line: LaunchLine, plan: Plan) -> int:
    """The most nodes that the job can have, by the pods of its manifest where --nnodes is not known; 0: nothing says it."""
    if plan.nnodes is not None:
        return plan.nnodes[1]
    return (line.pod.pods or 0) if line.pod is not None and plan.given("nnodes") else 0


def _several(plan: Plan) -> bool:
    return plan.nnodes is not None and plan.nnodes[1] > 1


def _certain(plan: Plan) -> bool:
    """More than one node at least; with MIN 1 the job starts on one."""
    return plan.nnodes is not None and plan.nnodes[0] > 1


@cause("LAUNCH025", "multinode-without-rendezvous", Severity.ERROR, explains=("ENV017", "PROBE001"))
def multinode_without_rendezvous(launch: Launch) -> Iterator[Finding]:
    """--nnodes is above 1 but nothing says where the nodes meet.

    ## Why it matters
    Every node takes itself for node rank 0 and opens a store on 127.0.0.1:29500. For 15 minutes nothing is printed, then
    `Timed out after 901 seconds waiting for clients. 1/2 clients joined.`

    ## Fix
    On every node the same --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400, or --master-addr=HOST0 with --node-rank 0, 1, ….
    """
    for line, layer, plan in agents(launch):
        if not _several(plan) or plan.backend != "static" or plan.nnodes is None or plan.nnodes[0] != plan.nnodes[1]:
            continue
        if any(plan.given(d) for d in ("rdzv_endpoint", "master_addr", "node_rank", "rdzv_backend")):
            continue
        given = layer.given("nnodes")
        word = layer.program if given is None else given.word
        text = f"{plan.nnodes[1]} nodes, but nothing says where they meet: expected an address that all of them know"
        edits = add(launch, layer, *c10d_options(line, plan))
        yield point(launch, line, word, text, "--rdzv-endpoint or --master-addr", edits)


@cause("LAUNCH026", "master-addr-omitted", Severity.ERROR)
def master_addr_omitted(launch: Launch) -> Iterator[Finding]:
    """--node-rank is given without --master-addr, so that every node looks for the master on itself.

    ## Why it matters
    The default is 127.0.0.1. Node rank 0 ends after 15 minutes with `1/2 clients joined`, the others after half an hour.

    ## Fix
    Add --master-addr with the address of the node with rank 0, the same on every node.
    """
    for line, layer, plan in agents(launch):
        if not _several(plan) or plan.backend != "static" or plan.settings["rdzv_endpoint"].value != "":
            continue
        given = layer.given("node_rank")
        if not plan.given("master_addr") and (plan.given("node_rank") or plan.given("rdzv_backend")):
            word = layer.program if given is None else given.word
            text = (
                "no --master-addr, so this node looks for the master at 127.0.0.1: expected the address of node rank 0"
            )
            yield point(launch, line, word, text, "--master-addr", add(launch, layer, ("master_addr", host0(line))))


@cause("LAUNCH027", "standalone-with-nnodes", Severity.ERROR)
def standalone_with_nnodes(launch: Launch) -> Iterator[Finding]:
    """--standalone stands beside a number of nodes above 1.

    ## Why it matters
    --standalone puts the rendezvous on this host's own port and keeps --nnodes: each node waits ten minutes for partners that
    cannot come, then `RendezvousTimeoutError` with an empty message.

    ## Fix
    Drop --standalone and name one endpoint for all nodes.
    """
    for line, layer, plan in agents(launch):
        if plan.is_standalone and _several(plan) and plan.nnodes is not None:
            given = layer.given("standalone")
            options = c10d_options(line, plan)
            edits: list[SpanEdit] | None = None
            if given is not None:
                text = " ".join(f"{spelled(layer, n, launch.version)}={v}" for n, v in options)
                edits = [SpanEdit(given.word.start, given.word.end, text)] if text else list(remove(line, given.word))
            yield point(
                launch,
                line,
                layer.program if given is None else given.word,
                f"--standalone with {plan.nnodes[1]} nodes waits for nodes that cannot reach it: expected one endpoint for all",
                "--rdzv-endpoint instead",
                edits,
            ).if_certain(_certain(plan))


@cause(
    "LAUNCH031",
    "c10d-endpoint-omitted",
    Severity.ERROR,
    signatures=(r"master_addr is only used for static rdzv_backend",),
)
def c10d_endpoint_omitted(launch: Launch) -> Iterator[Finding]:
    """--rdzv-backend=c10d has no --rdzv-endpoint on more than one node.

    ## Why it matters
    c10d ignores --master-addr, --master-port and --node-rank (`master_addr is only used for static rdzv_backend and when
    rdzv_endpoint is not specified.`). Each node opens its own store at localhost:29400 and waits there for ten minutes.

    ## Fix
    Add --rdzv-endpoint with one node's name, the same on every node, or use --rdzv-backend=static.
    """
    for line, layer, plan in agents(launch):
        if plan.backend != "c10d" or plan.is_standalone is not False or not _several(plan) or plan.nnodes is None:
            continue
        if plan.given("rdzv_endpoint") and plan.settings["rdzv_endpoint"].value != "":
            continue
        given = layer.given("rdzv_backend")
        address, port = plan.settings["master_addr"], plan.settings["master_port"].value
        host = (
            address.value if address.origin != "default" and address.value and not is_loopback(address.value) else None
        )
        number = port if port and plan.given("master_port") else DEFAULT_C10D_PORT
        endpoint = layer.given("rdzv_endpoint")
        edits = None if endpoint else add(launch, layer, ("rdzv_endpoint", f"{host or host0(line)}:{number}"))
        ignored = " (c10d ignores --master-addr)" if plan.given("master_addr") else ""
        yield point(
            launch,
            line,
            layer.program if given is None else given.word,
            f"c10d for {plan.nnodes[1]} nodes without --rdzv-endpoint{ignored}: each waits at its own localhost:29400; "
            "expected one endpoint",
            "--rdzv-endpoint",
            edits,
        ).if_certain(_certain(plan))


@cause("LAUNCH032", "rdzv-endpoint-loopback", Severity.ERROR, scope=CauseScope.SEPARATE_MACHINES)
def rdzv_endpoint_loopback(launch: Launch) -> Iterator[Finding]:
    """--rdzv-endpoint is a loopback address in a job of more than one node.

    ## Why it matters
    localhost is each node's own: every node waits alone for ten minutes and ends with an empty `RendezvousTimeoutError`. Two
    agents on one machine do meet there, so that a rehearsal on one machine succeeds.

    ## Fix
    Name one node by an address that all of them can reach.
    """
    for line, layer, plan in agents(launch):
        endpoint = plan.settings["rdzv_endpoint"]
        given = layer.given("rdzv_endpoint")
        count = most_nodes(line, plan)
        if plan.is_standalone is not False or not endpoint.value or count < 2:
            continue
        if not is_loopback(plan.host) or _rehearsed(launch, line):
            continue
        port = plan.port or (DEFAULT_PORT if plan.backend == "static" else DEFAULT_C10D_PORT)
        edits = None
        if given is not None:
            value = f"{host0(line)}:{port}"
            edits = [revalue(given, value)]
        yield point(
            launch,
            line,
            layer.program if given is None else given.value_word,
            f"{endpoint.value} is every node's own address, and the job has {count} nodes: expected one node's name",
            "a name that all nodes can reach",
            edits,
        ).if_certain(plan.nnodes is None or _certain(plan) or plan.backend == "static")


def _rehearsed(launch: Launch, line: LaunchLine) -> bool:
    """Several agents of one file or script in the background: a rehearsal of two nodes on one machine."""
    others = [
        x for x in launch.lines if x is not line and x.plan is not None and x.node is None and x.file == line.file
    ]
    return line.node is None and any(x.is_background for x in (line, *others)) and bool(others)


@cause("LAUNCH033", "rdzv-backend-omitted", Severity.ERROR)
def rdzv_backend_omitted(launch: Launch) -> Iterator[Finding]:
    """--rdzv-endpoint is given without --rdzv-backend, so that the rendezvous is static and every node has rank 0.

    ## Why it matters
    The backend's default is static, which counts nodes by --node-rank; without it all of them are node rank 0 and wait for
    clients on their own.

    ## Fix
    Add --rdzv-backend=c10d, or a --node-rank per node.
    """
    for line, layer, plan in agents(launch):
        if plan.backend != "static" or plan.given("rdzv_backend") or plan.given("node_rank") or not _several(plan):
            continue
        given = layer.given("rdzv_endpoint")
        if given is None or not given.value:
            continue
        text = f"{shown(given.word)} without --rdzv-backend is static and this node has rank 0: expected --rdzv-backend=c10d"
        yield point(launch, line, given.word, text, "--rdzv-backend=c10d", add(launch, layer, ("rdzv_backend", "c10d")))


@cause("LAUNCH046", "nnodes-range-without-c10d", Severity.ERROR)
def nnodes_range_without_c10d(launch: Launch) -> Iterator[Finding]:
    """--nnodes is a range, but the rendezvous is static.

    ## Why it matters
    Static rendezvous takes MAX as the number of nodes and waits for all of them: with `--nnodes=1:2` one node alone waits 15
    minutes.

    ## Fix
    Add --rdzv-backend=c10d and an endpoint, or give one number.
    """
    for line, layer, plan in agents(launch):
        if plan.backend != "static" or plan.nnodes is None or plan.nnodes[0] == plan.nnodes[1]:
            continue
        given = layer.given("nnodes")
        backend = layer.given("rdzv_backend")
        options = c10d_options(line, plan)
        edits = add(launch, layer, *[o for o in options if backend is None or o[0] != "rdzv_backend"])
        if backend is not None:
            edits.append(revalue(backend, "c10d"))
        text = (
            f"{plan.nnodes[0]}:{plan.nnodes[1]} nodes with static rendezvous waits for {plan.nnodes[1]}: expected c10d"
        )
        yield point(launch, line, layer.program if given is None else given.word, text, "--rdzv-backend=c10d", edits)


@c10d_endpoint_omitted.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided over what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.C10D_ENDPOINT_OMITTED)
