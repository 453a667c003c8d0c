"""LAUNCH025 to 027, 031 to 033, 046: rendezvous options with which several nodes cannot join."""

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
from ddpdoctor.rules.launch.pointing import (
    HOST0,
    after,
    agents,
    every_node,
    option_text,
    point,
    remove,
    revalue,
    shown,
    spelled,
)

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["add", "c10d_options", "host0", "most_nodes"]

FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def host0(line: LaunchLine) -> str:
    """How a corrected line names the node of rank 0: MASTER_ADDR if it is set, else the first host of Slurm, else HOST0."""
    address = line.environ.variables.get("MASTER_ADDR", "")
    if address and UNKNOWN not in address and not is_loopback(address) and re.fullmatch(r"[\w.-]+", address):
        return address
    if line.pod is not None:
        return _first_pod(line.pod) or HOST0
    return FIRST_HOST if line.layer(LauncherKind.SRUN) is not None or line.batch is not None else HOST0


def _first_pod(pod: Pod) -> str | None:
    """The name of the pod with rank 0, or the variable in which the operator passes it."""
    variable = {Operator.PYTORCHJOB: "MASTER_ADDR", Operator.TRAINJOB: "PET_MASTER_ADDR"}.get(pod.operator)
    if variable is not None:
        return f"${variable}" if pod.in_shell else f"$({variable})"
    named = pod.operator in (Operator.STATEFULSET, Operator.JOB) and pod.name and pod.service
    return f"{pod.name}-0.{pod.service}" if named else None


def add(launch: Launch, layer: Layer, *options: tuple[str, str]) -> list[SpanEdit]:
    """Add options after the launcher's own, in the line's style."""
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
    """The most nodes that the job can have, by the pods of its manifest if --nnodes is not known; 0 if it is unknown."""
    if plan.nnodes is not None:
        return plan.nnodes[1]
    return (line.pod.pods or 0) if line.pod is not None and plan.given("nnodes") else 0


def _several(plan: Plan) -> bool:
    return plan.nnodes is not None and plan.nnodes[1] > 1


def _certain(plan: Plan) -> bool:
    """More than one node at least; with MIN 1 the job starts on one node."""
    return plan.nnodes is not None and plan.nnodes[0] > 1


@cause("LAUNCH025", "multinode-without-rendezvous", Severity.ERROR, explains=("ENV017", "PROBE001"))
def multinode_without_rendezvous(launch: Launch) -> Iterator[Finding]:
    """--nnodes is above 1, but there is no rendezvous address.

    ## Why it matters
    Every node becomes node rank 0, opens its own store on 127.0.0.1:29500, and prints nothing for 15 minutes. Then it
    fails with `Timed out after 901 seconds waiting for clients. 1/2 clients joined.`

    ## Fix
    Give all nodes the same rendezvous address.

    Or give them `--master-addr=HOST0`, and `--node-rank` 0, 1, ….

    ## Example
        error[LAUNCH025]: --nnodes 2 without a rendezvous address

        # before
        torchrun --nnodes 2 train.py

        # after
        torchrun --nnodes 2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line, layer, plan in agents(launch):
        if not _several(plan) or plan.backend != "static" or plan.nnodes is None or plan.nnodes[0] != plan.nnodes[1]:
            continue
        if any(plan.given(d) for d in ("rdzv_endpoint", "master_addr", "node_rank", "rdzv_backend")):
            continue
        given = layer.given("nnodes")
        word = layer.program if given is None else given.word
        option = f"PET_NNODES={plan.nnodes[1]}" if given is None else option_text(given)
        yield point(
            launch,
            line,
            word,
            f"{option} without a rendezvous address",
            "--rdzv-endpoint or --master-addr",
            add(launch, layer, *c10d_options(line, plan)),
            label="add --rdzv-endpoint or --master-addr",
            on=every_node(launch, line),
        )


@cause("LAUNCH026", "master-addr-omitted", Severity.ERROR)
def master_addr_omitted(launch: Launch) -> Iterator[Finding]:
    """--node-rank is given without --master-addr, so every node uses 127.0.0.1 as the master address.

    ## Why it matters
    Node rank 0 fails after 15 minutes with `1/2 clients joined`. The other nodes fail after 30 minutes.

    ## Fix
    Add `--master-addr` with the address of node rank 0.

    The address is the same on every node.

    ## Example
        error[LAUNCH026]: --node-rank=1 without --master-addr

        # before
        torchrun --nnodes=2 --node-rank=1 train.py

        # after
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
    """
    for line, layer, plan in agents(launch):
        if not _several(plan) or plan.backend != "static" or plan.settings["rdzv_endpoint"].value != "":
            continue
        given = layer.given("node_rank")
        if not plan.given("master_addr") and (plan.given("node_rank") or plan.given("rdzv_backend")):
            option = "static rendezvous" if given is None else option_text(given)
            yield point(
                launch,
                line,
                layer.program if given is None else given.word,
                f"{option} without --master-addr",
                "--master-addr",
                add(launch, layer, ("master_addr", host0(line))),
                label="node rank 0 defaults to 127.0.0.1",
            )


@cause("LAUNCH027", "standalone-with-nnodes", Severity.ERROR)
def standalone_with_nnodes(launch: Launch) -> Iterator[Finding]:
    """--standalone is combined with --nnodes above 1.

    ## Why it matters
    --standalone opens the rendezvous on a port of this host only. Each node waits ten minutes for the others and
    fails with `RendezvousTimeoutError` and an empty message.

    ## Fix
    Replace `--standalone` by one endpoint for all nodes.

    ## Example
        error[LAUNCH027]: --standalone with 2 nodes: they cannot reach each other

        # before
        torchrun --standalone --nnodes=2 train.py

        # after
        torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 --nnodes=2 train.py
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
                f"--standalone with {plan.nnodes[1]} nodes: they cannot reach each other",
                "--rdzv-endpoint instead",
                edits,
                label="use --rdzv-endpoint instead",
                on=every_node(launch, line),
            ).if_certain(_certain(plan))


@cause(
    "LAUNCH031",
    "c10d-endpoint-omitted",
    Severity.ERROR,
    signatures=(r"master_addr is only used for static rdzv_backend",),
)
def c10d_endpoint_omitted(launch: Launch) -> Iterator[Finding]:
    """--rdzv-backend=c10d is used on several nodes without --rdzv-endpoint.

    ## Why it matters
    Each node opens its own store on localhost:29400 and waits there for ten minutes. c10d ignores --master-addr,
    --master-port and --node-rank: `master_addr is only used for static rdzv_backend and when rdzv_endpoint is not
    specified.`

    ## Fix
    Add `--rdzv-endpoint` with the name of one node.

    It is the same on every node. Or use `--rdzv-backend=static` with --master-addr and --node-rank.

    ## Example
        error[LAUNCH031]: c10d on 2 nodes without --rdzv-endpoint

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
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
        label = "c10d ignores --master-addr" if plan.given("master_addr") else "each node waits on localhost:29400"
        yield point(
            launch,
            line,
            layer.program if given is None else given.word,
            f"c10d on {plan.nnodes[1]} nodes without --rdzv-endpoint",
            "--rdzv-endpoint",
            edits,
            label=label,
            on=every_node(launch, line),
        ).if_certain(_certain(plan))


@cause(
    "LAUNCH032",
    "rdzv-endpoint-loopback",
    Severity.ERROR,
    scope=CauseScope.SEPARATE_MACHINES,
    repairs=("address", "wrap", "escape"),
)
def rdzv_endpoint_loopback(launch: Launch) -> Iterator[Finding]:
    """--rdzv-endpoint is a loopback address in a job of several nodes.

    ## Why it matters
    `localhost` points each node at itself: each waits alone for ten minutes and fails with an empty
    `RendezvousTimeoutError`. Two launchers on one machine do join, so a test on one machine succeeds.

    ## Fix
    Use the address of one node that all nodes can reach.

    ## Example
        error[LAUNCH032]: localhost:29400 points each of 2 nodes at itself

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
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
            f"{endpoint.value} points each of {count} nodes at itself",
            "a name that all nodes can reach",
            edits,
            label="use one node's address",
            on=every_node(launch, line),
        ).if_certain(plan.nnodes is None or _certain(plan) or plan.backend == "static")


def _rehearsed(launch: Launch, line: LaunchLine) -> bool:
    """Whether the file starts several launchers in the background: a test of two nodes on one machine."""
    others = [
        x for x in launch.lines if x is not line and x.plan is not None and x.node is None and x.file == line.file
    ]
    return line.node is None and any(x.is_background for x in (line, *others)) and bool(others)


@cause("LAUNCH033", "rdzv-backend-omitted", Severity.ERROR)
def rdzv_backend_omitted(launch: Launch) -> Iterator[Finding]:
    """--rdzv-endpoint is given without --rdzv-backend.

    ## Why it matters
    The default backend is static, which needs a --node-rank on each node. Without it every node is node rank 0 and
    waits for the others.

    ## Fix
    Add `--rdzv-backend=c10d`.

    Or give each node its own --node-rank.

    ## Example
        error[LAUNCH033]: --rdzv-endpoint=HOST0:29400 without --rdzv-backend=c10d

        # before
        torchrun --nnodes=2 --rdzv-endpoint=HOST0:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-endpoint=HOST0:29400 --rdzv-backend=c10d train.py
    """
    for line, layer, plan in agents(launch):
        if plan.backend != "static" or plan.given("rdzv_backend") or plan.given("node_rank") or not _several(plan):
            continue
        given = layer.given("rdzv_endpoint")
        if given is None or not given.value:
            continue
        yield point(
            launch,
            line,
            given.word,
            f"{shown(given.word)} without --rdzv-backend=c10d",
            "--rdzv-backend=c10d",
            add(launch, layer, ("rdzv_backend", "c10d")),
            label="static: every node is rank 0",
            on=every_node(launch, line),
        )


@cause("LAUNCH046", "nnodes-range-without-c10d", Severity.ERROR)
def nnodes_range_without_c10d(launch: Launch) -> Iterator[Finding]:
    """--nnodes is a range, but the rendezvous is static.

    ## Why it matters
    Static rendezvous always waits for the maximum. With `--nnodes=1:2` a single node waits 15 minutes and fails.

    ## Fix
    Use c10d with an endpoint, or give one number.

    ## Example
        error[LAUNCH046]: --nnodes=1:2 with static rendezvous always waits for 2 nodes

        # before
        torchrun --nnodes=1:2 train.py

        # after
        torchrun --nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
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
        low, high = plan.nnodes
        yield point(
            launch,
            line,
            layer.program if given is None else given.word,
            f"--nnodes={low}:{high} with static rendezvous always waits for {high} nodes",
            "--rdzv-backend=c10d",
            edits,
            label="a range needs --rdzv-backend=c10d",
            on=every_node(launch, line),
        )


@c10d_endpoint_omitted.look
def not_joined(log: Log) -> Iterator[Finding]:
    """What all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.C10D_ENDPOINT_OMITTED)
