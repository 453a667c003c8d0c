"""ENV042, ENV044, ENV067: identities, topologies, and variables that NCCL reads from other places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import ConfFile, Environ, shorten
from ddpdoctor.facts.gaps import unanswered
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, value

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

__all__ = ["nccl_comm_id_set", "nccl_conf_file_present", "nccl_topo_file_invalid"]

MOST_SHOWN = 8


@cause("ENV042", "nccl-comm-id-set", Severity.WARNING)
def nccl_comm_id_set(environ: Environ) -> Iterator[Finding]:
    """NCCL_COMM_ID or NCCL_HOSTID is set by hand.

    ## Why it matters
    torch itself gives the ranks their rendezvous address; with the NCCL_COMM_ID of another job they wait at the
    wrong one. The same NCCL_HOSTID on two nodes makes NCCL treat them as one host.

    ## Fix
    Unset NCCL_COMM_ID and NCCL_HOSTID.

    ## Example

        NCCL_COMM_ID=10.0.0.7:41023 overrides the rendezvous address that torch sets

        # before: copied from another job
        export NCCL_COMM_ID=10.0.0.7:41023
        # after
        unset NCCL_COMM_ID

    ## Source
    NCCL src/init.cc: ncclGetUniqueId; src/misc/utils.cc: getHostHash.
    """
    for name, wrong in (
        ("NCCL_COMM_ID", "overrides the rendezvous address that torch sets"),
        ("NCCL_HOSTID", "makes NCCL treat all ranks with this value as one host"),
    ):
        if value(environ, name):
            yield about(environ, name, wrong, "unset")


@cause(
    "ENV044",
    "nccl-topo-file-invalid",
    Severity.ERROR,
    signatures=(
        r"Could not open XML graph file",
        r"XML Topology has wrong version",
        r"NCCL WARN Attribute \w+ of node \w+ not found",
        r"Could not open XML topology file",
        r"XML Graph has wrong version",
        r"NCCL WARN XML (Parse|Mismatch|Import Channel)\b",
        r"NCCL WARN Error : XML parser is limited to",
        r"system node not found in XML",
        r"Convert to str : could not find value",
    ),
)
def nccl_topo_file_invalid(environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NCCL_TOPO_FILE or NCCL_GRAPH_FILE does not exist or describes another machine.

    ## Why it matters
    Without its graph file NCCL does not start: `Could not open XML graph file`. Without its topology file, or with
    that of another machine type, it uses what it detects itself, and paths that the file should correct are slow.

    ## Fix
    Unset the variable, or name the file that was made for this machine type.

    ## Example

        NCCL WARN Could not open XML graph file /opt/graph.xml : No such file or directory

        # before
        export NCCL_GRAPH_FILE=/opt/graph.xml
        # after
        unset NCCL_GRAPH_FILE

    ## Source
    NCCL src/graph/xml.cc: ncclTopoGetXmlFromFile, ncclTopoGetXmlGraphFromFile.
    """
    graph, topology = environ.named("NCCL_GRAPH_FILE"), environ.named("NCCL_TOPO_FILE")
    if graph is not None and not graph.exists:
        yield about(environ, graph.variable, "does not exist here; NCCL will not start", "a file that exists")
    if topology is None:
        return
    if not topology.exists:
        softer = Severity.WARNING  # NCCL continues without it
        yield about(environ, topology.variable, "does not exist here", "a file that exists", severity=softer)
    foreign = [d.bus_id for d in (gpu.devices if gpu is not None else ()) if d.bus_id and topology.gpu_bus_ids]
    foreign = [bus_id for bus_id in foreign if not any(_same(bus_id, listed) for listed in topology.gpu_bus_ids)]
    if foreign:
        count = f"{len(foreign)} GPU{'s' * (len(foreign) > 1)}"
        wrong = f"does not describe {count} of this node, such as {foreign[0]}"
        expected = "the file of this machine type"
        yield about(environ, topology.variable, wrong, expected, severity=Severity.WARNING)


def _same(one: str, other: str) -> bool:
    """Whether two bus ids are equal: the domain has four digits, eight, or none."""
    return one.lower().lstrip("0:") == other.lower().lstrip("0:")


@cause("ENV067", "nccl-conf-file-present", Severity.NOTE)
def nccl_conf_file_present(environ: Environ) -> Iterator[Finding]:
    """An nccl.conf file sets variables that the environment does not show.

    ## Why it matters
    Its values act as if they were exported, on this node only, and `env` does not list them. Quotes, spaces around the
    equals sign, and `export` become part of the name or the value, so such a line has no effect.

    ## Fix
    Check the values that the finding lists; the environment overrides $NCCL_CONF_FILE or ~/.nccl.conf, and these
    override /etc/nccl.conf.

    ## Example

        /etc/nccl.conf sets NCCL_IB_HCA=mlx5 (not visible in the environment)

        # before, in /etc/nccl.conf: with the spaces, NCCL ignores the line
        NCCL_DEBUG = WARN
        # after
        NCCL_DEBUG=WARN

    ## Source
    NCCL documentation, system configuration; src/misc/param.cc: initEnvFunc, setEnvFile.
    """
    gap = environ.gap("conf_files")
    if gap is not None:
        unanswered(gap.reason)
    for index, file in enumerate(environ.conf_files):
        if file.variables:
            yield _about_file(environ, index, file)
    named = environ.named("NCCL_CONF_FILE")
    if named is not None and not named.exists:
        yield about(environ, "NCCL_CONF_FILE", "does not exist here; NCCL ignores it silently", "a file that exists")


def _about_file(environ: Environ, index: int, file: ConfFile) -> Finding:
    malformed = [name for name in file.variables if name != name.strip() or " " in name]
    overridden = [n for n in file.variables if n not in malformed and environ.source(n)[1] != file.path]
    effective = [
        f"{shorten(n, 60)}={shorten(v, 30)}"
        for n, v in file.variables.items()
        if n not in malformed and n not in overridden
    ]
    parts = [f"sets {_some(effective)} (not visible in the environment)" if effective else "has no effect"]
    parts += [f"{_some([shorten(n, 60) for n in overridden])} is overridden"] if overridden else []
    parts += (
        [f"NCCL ignores {_some([repr(shorten(n, 30)) for n in malformed])} because of its spaces"] if malformed else []
    )
    return Finding(
        f"{shorten(file.path)} {'; '.join(parts)}",
        (Evidence(f"environ.conf_files[{index}]", _some(effective) or "no effective value", "known values"),),
        fix_command=f"cat {file.path}" if file.path.isprintable() and " " not in file.path else None,
    )


def _some(items: list[str]) -> str:
    more = len(items) - MOST_SHOWN
    return ", ".join(items[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
