"""ENV012, ENV014, ENV015, ENV016, ENV017: where the store is: MASTER_ADDR and MASTER_PORT, and torchrun's PET_MASTER_*."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.addresses import is_loopback, malformation
from ddpdoctor.facts.environ import Environ, as_integer, shorten
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.environ import environments_of_nodes
from ddpdoctor.rules.launch import master
from ddpdoctor.rules.node_findings import only_met

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")


@cause("ENV012", "master-env-ignored", Severity.WARNING)
def master_env_ignored(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """MASTER_ADDR or MASTER_PORT is exported, but torchrun takes another value and overwrites it.

    ## Why it matters
    torchrun reads only its options and PET_* variables, and gives its workers a MASTER_ADDR and MASTER_PORT of its own. The
    exported ones have no effect: nodes meet elsewhere than expected, or on 127.0.0.1 and never.

    ## Fix
    Give torchrun the options --master-addr and --master-port, or --rdzv-endpoint=HOST:PORT, and unset the others.

    ## Source
    torch/distributed/elastic/agent/server/local_elastic_agent.py: `_start_workers`.
    """
    if launch is not None:
        yield from master.ignored(launch)
    launcher = environ.launcher
    if launcher is not None and launcher.name == "torchrun":
        return  # a worker: what stands in MASTER_* is torchrun's own
    for plain, pet in (ADDRESSES, PORTS):
        given, used = environ.get(plain), environ.get(pet)
        if given and used and given != used and not (is_loopback(given) and launcher is not None):
            yield Finding(
                f"{plain}={shorten(given)} is ignored by torchrun, which takes {pet}={shorten(used)}; expected one value",
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
    """The master port is below 1024, where only root may listen.

    ## Why it matters
    Rank 0 ends with `The server socket has failed to listen … errno: 13 - Permission denied`, or finds a system service there.
    Nobody chooses such a port: often it is PORT of an unrelated service, such as 22, taken over by a start script.

    ## Fix
    Set the master port to a free one between 20000 and 60000, and unset PORT if it came from there.
    """
    if launch is not None:
        yield from master.privileged(launch)
    for name in PORTS:
        port = environ.integer(name)
        if port is None or not 0 < port < 1024:
            continue
        origin = " (the value of PORT, which belongs to another service)" if environ.integer("PORT") == port else ""
        yield Finding(
            f"{name}={port}{origin} is below 1024: expected a free port from 1024 to 65535",
            (Evidence(f"environ.variables.{name}", str(port), "1024 to 65535"),),
            fix_command=f"export {name}=29500",
        )


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
    A word ends in `invalid literal for int() with base 10` without the variable's name, 70000 in `port must have value from
    0 to 65535`. With 0 rank 0 listens on a port that the others never learn, and they time out against port 0.

    ## Fix
    Set MASTER_PORT to the same free port from 1024 to 65535 on every node.
    """
    if launch is not None:
        yield from master.port_invalid(launch)
    for name in PORTS:
        value = environ.get(name)
        port = as_integer(value)
        if not value or (port is not None and 0 < port < 65536) or (port == 0 and environ.world_size == 1):
            continue
        yield Finding(
            f"{name}={shorten(value)} is no port: expected an integer from 1024 to 65535",
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
)
def master_addr_malformed(environ: Environ, launch: Launch | None = None) -> Iterator[Finding]:
    """MASTER_ADDR is no bare host name or address.

    ## Why it matters
    torch hands the value to the resolver as it is: `The IPv6 network addresses of (127.0.0.1:29500, 29500) cannot be
    retrieved`, again and again for 15 minutes or more. torchrun stops a URL with `The hostname of the rendezvous endpoint`.

    ## Fix
    Put the bare host into MASTER_ADDR and the port into MASTER_PORT.
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
            f"{name}={shorten(value)} {problem}: expected a bare host name or IP address",
            (Evidence(f"environ.variables.{name}", shorten(value), host or "a bare host name or IP address"),),
            fix_command=command,
        )


def _parts(value: str) -> tuple[str | None, str | None]:
    """The host and the port that were meant, where that is clear."""
    bare = re.sub(r"^[a-z][a-z0-9+.-]*://", "", value.strip().strip("\"'“”‘’"), flags=re.IGNORECASE).partition("/")[0]
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]{1,253}))(?::(\d{1,5}))?", bare)
    return (match[1] or match[2], match[3]) if match and match[2] != value else (None, None)


@cause(
    "ENV017",
    "master-addr-loopback",
    Severity.ERROR,
    scope=CauseScope.SEPARATE_MACHINES,
    signatures=(r"timed out after \d+m?s while trying to connect to \((localhost|127\.\d+\.\d+\.\d+|::1), \d+\)",),
)
def master_addr_loopback(
    environ: Environ | None = None, launch: Launch | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address in a job of more than one node.

    ## Why it matters
    Every node then looks for rank 0 on itself. The node of rank 0 says `1/2 clients joined`, the others time out `while trying
    to connect to (localhost, 29500)`, and for 15 to 30 minutes nothing is printed at all.

    ## Fix
    Set MASTER_ADDR to the name or address by which the other nodes reach the node of rank 0.
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
            not_here(f"{name}={shorten(value)} is right on one node, and how many nodes the job has is not known")
        if not environ.is_multi_node or (environ.scheduler == "kubernetes" and environ.node_rank == 0):
            continue  # older PyTorchJob operators tell the master pod that it is localhost
        several = f"{environ.nnodes} nodes" if environ.nnodes else "several nodes"
        slurm = environ.scheduler == "slurm"
        yield Finding(
            f"{name}={shorten(value)} in a job of {several}: expected an address of rank 0's node that the others can reach",
            (Evidence(f"environ.variables.{name}", shorten(value), "an address that other nodes can reach"),),
            fix_command=f'export {name}=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
            if slurm
            else None,
        )


@master_addr_loopback.look
def not_joined(log: Log) -> Iterator[Finding]:
    """Decided over what all nodes printed while they waited."""
    from ddpdoctor.rules.log.joining import Joining, joining_findings

    return joining_findings(log, Joining.MASTER_ADDR_LOOPBACK)
