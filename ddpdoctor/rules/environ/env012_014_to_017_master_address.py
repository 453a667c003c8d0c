"""ENV012, ENV014, ENV015, ENV016, ENV017: the address of the store: MASTER_ADDR, MASTER_PORT, and torchrun's
PET_MASTER_*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.addresses import is_loopback, malformation
from ddpdoctor.facts.environ import Environ, as_integer, shorten
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.launch.submitted import at_mark, mark_of
from ddpdoctor.rules.node_findings import only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
PRIVILEGED = re.compile(r"(?:master[-_]port|MASTER_PORT)[= ]\"?[1-9]\d{0,2}\b")
"""A port below 1000 in a launch command."""


@cause("ENV012", "master-env-ignored", Severity.WARNING)
def master_env_ignored(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """MASTER_ADDR or MASTER_PORT is exported, but torchrun uses another value and overwrites it.

    ## Why it matters
    torchrun reads only its options and PET_* variables, and gives its workers its own MASTER_ADDR and MASTER_PORT.
    The exported ones have no effect: the nodes use another address than expected, or each waits at its own
    127.0.0.1.

    ## Fix
    Give torchrun --master-addr and --master-port, or --rdzv-endpoint=HOST:PORT, and unset the variables.

    ## Example

        torchrun ignores MASTER_PORT=29501 (PET_MASTER_PORT=29500 is used)

        # before: each node waits at 127.0.0.1:29500
        export MASTER_ADDR=node0 MASTER_PORT=29501
        torchrun --nnodes 2 --node-rank 0 train.py

        # after
        torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29501 train.py

    ## Source
    torch/distributed/elastic/agent/server/local_elastic_agent.py: `_start_workers`.
    """
    if launch is not None:
        yield from master.ignored(launch)
    launcher = environ.launcher
    if launcher is not None and launcher.name == "torchrun":
        return  # a worker: torchrun itself has set its MASTER_*
    for plain, pet in (ADDRESSES, PORTS):
        given, used = environ.get(plain), environ.get(pet)
        if given and used and given != used and not (is_loopback(given) and launcher is not None):
            yield Finding(
                f"torchrun ignores {plain}={shorten(given)} ({pet}={shorten(used)} is used)",
                (
                    Evidence(f"environ.variables.{plain}", shorten(given), shorten(used)),
                    Evidence(f"environ.variables.{pet}", shorten(used)),
                ),
                fix_command=f"unset {plain}",
            )


@cause(
    "ENV014",
    "master-port-privileged",
    Severity.ERROR,
    also_in=("ports",),
    signatures=(r"errno: 13 - Permission denied", r"system error: 10013"),
)
def master_port_privileged(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """The master port is below 1024, where only root can listen.

    ## Why it matters
    Rank 0 fails with `The server socket has failed to listen … errno: 13 - Permission denied`, and the other ranks may
    connect to a system service. Often a start script copied the value from the PORT of another service, such as 22.

    ## Fix
    Set the master port to a free one between 20000 and 60000, and unset PORT if it came from there.

    ## Example

        The server socket has failed to listen on any local network address. … errno: 13 - Permission denied

        # before
        export MASTER_PORT=$PORT     # 22
        # after
        export MASTER_PORT=29500
    """
    if launch is not None:
        yield from master.privileged(launch)
    for name in PORTS:
        port = environ.integer(name)
        if port is None or not 0 < port < 1024:
            continue
        origin = " (the value of PORT)" if environ.integer("PORT") == port else ""
        yield Finding(
            f"{name}={port}{origin} is below 1024; only root can listen there",
            (Evidence(f"environ.variables.{name}", str(port), "1024 to 65535"),),
            fix_command=f"export {name}=29500",
        )


@master_port_privileged.look
def port_denied(log: Log) -> Iterator[Finding]:
    """The message with its number; or a refused permission below a launch command with such a port."""
    from ddpdoctor.rules.log.signatures import finding_of, signed

    found = list(signed(master_port_privileged, log))
    shown = dict.fromkeys((*log.heads, *log.lines, *log.tails))
    commands = [line for line in shown if PRIVILEGED.search(line.text)]
    denied = [line for line in shown if "RuntimeError: Permission denied" in line.text]
    if not found and commands and denied:
        title = "The master port is below 1024, where only root can listen"
        found = [finding_of(log, [*denied[:1], *commands[:1]], title, blames_speaker=False)]
    yield from found


@cause(
    "ENV015",
    "master-port-invalid",
    Severity.ERROR,
    also_in=("ports",),
    signatures=(
        r"The port number of the rendezvous endpoint '[^']*' must be an integer",
        r"argument --master[-_]port\S*: invalid int value",
    ),
)
def master_port_invalid(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """MASTER_PORT is not a port number from 1 to 65535.

    ## Why it matters
    Text gives `invalid literal for int() with base 10` without the variable's name, and 70000 gives `port must have
    value from 0 to 65535`. With 0, rank 0 listens on a port that the other ranks never learn, and they time out at
    port 0.

    ## Fix
    Set MASTER_PORT to the same free port from 1024 to 65535 on every node.

    ## Example

        ValueError: invalid literal for int() with base 10: 'http'

        # before
        export MASTER_PORT=http
        # after, on every node
        export MASTER_PORT=29500
    """
    if launch is not None:
        yield from master.port_invalid(launch)
    for name in PORTS:
        value = environ.get(name)
        port = as_integer(value)
        if not value or (port is not None and 0 < port < 65536) or (port == 0 and environ.world_size == 1):
            continue
        yield Finding(
            f"{name}={shorten(value)} is not a port number",
            (Evidence(f"environ.variables.{name}", shorten(value), "1024 to 65535"),),
            fix_command=f"export {name}=29500",
        )


@cause(
    "ENV016",
    "master-addr-malformed",
    Severity.ERROR,
    signatures=(
        r"network addresses of \([^,()\s]+:\d+, \d+\) cannot be retrieved",
        r"hostname of the rendezvous endpoint '[a-z]+://",
    ),
    repairs=("address", "wrap", "escape"),
)
def master_addr_malformed(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """MASTER_ADDR is not a bare host name or IP address.

    ## Why it matters
    torch passes the value to the resolver unchanged: `The IPv6 network addresses of (127.0.0.1:29500, 29500) cannot
    be retrieved` repeats for 15 minutes or more. torchrun rejects a URL with `The hostname of the rendezvous
    endpoint`.

    ## Fix
    Put only the host into MASTER_ADDR and the port into MASTER_PORT.

    ## Example

        The IPv6 network addresses of (node0:29500, 29500) cannot be retrieved

        # before
        export MASTER_ADDR=node0:29500
        # after
        export MASTER_ADDR=node0 MASTER_PORT=29500
    """
    if launch is not None:
        yield from master.malformed(launch, malformation, _parts)
    for name in ADDRESSES:
        value = environ.get(name)
        problem = malformation(value) if value else None
        if not value or problem is None:
            continue
        host, port = _parts(value)
        command = f"export {name}={host}" if host else None
        if command and port and name == "MASTER_ADDR":
            command += f" MASTER_PORT={port}"
        yield Finding(
            f"{name}={shorten(value)} {problem}",
            (Evidence(f"environ.variables.{name}", shorten(value), host or "a bare host name or IP address"),),
            fix_command=command,
        )


def _parts(value: str) -> tuple[str | None, str | None]:
    """The intended host and port, if they are clear."""
    bare = re.sub(r"^[a-z][a-z0-9+.-]*://", "", value.strip().strip("\"'“”‘’"), flags=re.IGNORECASE).partition("/")[0]
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]{1,253}))(?::(\d{1,5}))?", bare)
    return (match[1] or match[2], match[3]) if match and match[2] != value else (None, None)


@cause(
    "ENV017",
    "master-addr-loopback",
    Severity.ERROR,
    scope=CauseScope.SEPARATE_MACHINES,
    signatures=(r"timed out after \d+m?s while trying to connect to \((localhost|127\.\d+\.\d+\.\d+|::1), \d+\)",),
    repairs=("address", "wrap", "escape"),
)
def master_addr_loopback(
    environ: Environ | None = None, launch: Launch | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address in a job with more than one node.

    ## Why it matters
    Each node then looks for rank 0 on itself: the node of rank 0 prints `1/2 clients joined`, the others time out
    `while trying to connect to (localhost, 29500)`. For 15 to 30 minutes nothing is printed.

    ## Fix
    Set MASTER_ADDR on every node to the name or address by which the other nodes reach the node of rank 0.

    ## Example

        The client socket has timed out after 600000ms while trying to connect to (localhost, 29500).

        # before
        export MASTER_ADDR=localhost
        # after, in the sbatch script: the same name on every node
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    """
    if launch is not None:
        yield from master.loopback(launch)
    if nodes is not None:
        yield from environments_of_nodes.loopback(nodes)
    if only_met(nodes, environ):
        return
    assert environ is not None
    for name in ADDRESSES:
        value = environ.get(name)
        if not value or not is_loopback(value):
            continue
        if environ.is_multi_node is None:
            not_here(f"{name}={shorten(value)} is correct on one node; the number of nodes is unknown")
        if not environ.is_multi_node or (environ.scheduler == "kubernetes" and environ.node_rank == 0):
            continue  # older PyTorchJob operators set localhost in the master pod
        several = f"{environ.nnodes} nodes" if environ.nnodes else "several nodes"
        slurm = environ.scheduler == "slurm"
        yield Finding(
            f"{name}={shorten(value)} in a job of {several}: each node connects to itself",
            (Evidence(f"environ.variables.{name}", shorten(value), "an address that other nodes can reach"),),
            fix_command=f'export {name}=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
            if slurm
            else None,
        )


@master_addr_loopback.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided from what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_ADDR_LOOPBACK)


@master_addr_loopback.look
def loopback_of_deepspeed(submission: Submission) -> Iterator[Finding]:
    """deepspeed's runner gives a loopback address to the hosts of its host file."""
    for step in submission.steps:
        task = step.tasks[0]
        given = task.layer.given("master_addr") if step.is_certain and len(task.active or ()) > 1 else None
        if given is not None and is_loopback(given.value or ""):
            text = f"{given.value} points each of {len(task.active or ())} hosts at itself"
            mark, expected = mark_of(task, given.value_word), next(iter(task.active or ()))
            yield at_mark(
                submission, mark, text, seen=given.value or "", expected=expected, label=f"use {expected:.30}"
            )
            return
