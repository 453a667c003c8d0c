"""ENV042, ENV044, ENV067: identities, topologies and variables that NCCL takes from elsewhere."""

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
    torch tells the ranks where to meet by itself. An NCCL_COMM_ID of another job sends them to the wrong place, where they
    wait; the same NCCL_HOSTID on two nodes makes NCCL take them for one.

    ## Fix
    Unset NCCL_COMM_ID and NCCL_HOSTID.

    ## Source
    NCCL src/init.cc: ncclGetUniqueId; src/misc/utils.cc: getHostHash.
    """
    for name, wrong in (
        ("NCCL_COMM_ID", "sets where NCCL's ranks meet, which torch does"),
        ("NCCL_HOSTID", "sets which ranks NCCL takes for one host"),
    ):
        if value(environ, name):
            yield about(environ, name, wrong, "it to be unset")


@cause(
    "ENV044",
    "nccl-topo-file-invalid",
    Severity.ERROR,
    signatures=(
        r"Could not open XML graph file",
        r"XML Topology has wrong version",
        r"NCCL WARN Attribute \w+ of node \w+ not found",
    ),
)
def nccl_topo_file_invalid(environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NCCL_TOPO_FILE or NCCL_GRAPH_FILE is missing or describes another machine.

    ## Why it matters
    Without its graph file NCCL does not start: "Could not open XML graph file". Without its topology file, or with that of
    another machine type, it plans with what it finds by itself, and ways are slow that the file was made to mend.

    ## Fix
    Unset the variable, or name the file that was made for this machine type.

    ## Source
    NCCL src/graph/xml.cc: ncclTopoGetXmlFromFile, ncclTopoGetXmlGraphFromFile.
    """
    graph, topology = environ.named("NCCL_GRAPH_FILE"), environ.named("NCCL_TOPO_FILE")
    if graph is not None and not graph.exists:
        yield about(environ, graph.variable, "does not exist here, and NCCL will not start", "a file that exists")
    if topology is None:
        return
    if not topology.exists:
        softer = Severity.WARNING  # NCCL goes on without it
        yield about(environ, topology.variable, "does not exist here", "a file that exists", severity=softer)
    foreign = [d.bus_id for d in (gpu.devices if gpu is not None else ()) if d.bus_id and topology.gpu_bus_ids]
    foreign = [bus_id for bus_id in foreign if not any(_same(bus_id, told) for told in topology.gpu_bus_ids)]
    if foreign:
        wrong = f"does not describe {len(foreign)} GPUs of this node, such as {foreign[0]}"
        expected = "the file of this machine type"
        yield about(environ, topology.variable, wrong, expected, severity=Severity.WARNING)


def _same(one: str, other: str) -> bool:
    """Bus ids are written with four or eight digits of the domain, or without one."""
    return one.lower().lstrip("0:") == other.lower().lstrip("0:")


@cause("ENV067", "nccl-conf-file-present", Severity.NOTE)
def nccl_conf_file_present(environ: Environ) -> Iterator[Finding]:
    """An nccl.conf file sets variables that the environment does not show.

    ## Why it matters
    Its values act as if they were exported, on this node only, and no listing of the environment has them. Quotes, blanks
    around the equals sign and `export` become part of the name or the value, so that such a line does nothing.

    ## Fix
    Know the values that the finding lists. The environment goes before $NCCL_CONF_FILE or ~/.nccl.conf, and these go
    before /etc/nccl.conf.

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
        yield about(environ, "NCCL_CONF_FILE", "does not exist here, and NCCL does not say so", "a file that exists")


def _about_file(environ: Environ, index: int, file: ConfFile) -> Finding:
    dead = [name for name in file.variables if name != name.strip() or " " in name]
    hidden = [n for n in file.variables if n not in dead and environ.source(n)[1] != file.path]
    acting = [
        f"{shorten(n, 60)}={shorten(v, 30)}" for n, v in file.variables.items() if n not in dead and n not in hidden
    ]
    parts = [f"sets {_some(acting)}" if acting else "sets nothing that counts"]
    parts += [f"{_some([shorten(n, 60) for n in hidden])} is set elsewhere, which goes before"] if hidden else []
    parts += [f"NCCL finds no variable in {_some([shorten(n, 30) for n in dead])}: blanks count"] if dead else []
    return Finding(
        f"{shorten(file.path)} {'; '.join(parts)}; expected you to know: no listing of the environment shows it",
        (Evidence(f"environ.conf_files[{index}]", _some(acting) or "nothing that counts", "known values"),),
        fix_command=f"cat {file.path}" if file.path.isprintable() and " " not in file.path else None,
    )


def _some(words: list[str]) -> str:
    more = len(words) - MOST_SHOWN
    return ", ".join(words[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
